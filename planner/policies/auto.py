"""The policy that is taken if none is named: whichever of several the simulator finds fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from teraio.planner.attempt import LONG, work
from teraio.planner.policies.fluid import fluid
from teraio.planner.policies.g10 import g10
from teraio.planner.policies.greedy import greedy
from teraio.planner.policies.teraio2025 import teraio2025
from teraio.planner.problem import CannotFitError
from teraio.planner.simulate import simulate_actions
from teraio.profiler.errors import SolverMissingError

if TYPE_CHECKING:
    from teraio.planner.problem import Answer, Problem


def auto(problem: Problem) -> Answer:
    """Return the answer of greedy, or of whichever is faster if that one stalls.

    The others are fluid and, in a step that is not long, those of TERAIO and G10, so that no
    plan is slower than theirs.

    Raises CannotFitError if greedy does.
    """
    name, best = "greedy", greedy(problem)
    least_ns = _step_ns(problem, best)
    others = {"fluid": fluid}
    if work(problem) <= LONG:
        others |= {"teraio2025": teraio2025, "g10": g10}
    for other, policy in others.items():
        if least_ns == problem.step.period_ns:
            break
        try:
            answer = policy(problem)
        except (CannotFitError, SolverMissingError):
            continue
        step_ns = _step_ns(problem, answer)
        if step_ns < least_ns:
            name, best, least_ns = other, answer, step_ns
    return replace(best, policy=name)


def _step_ns(problem: Problem, answer: Answer) -> int:
    return simulate_actions(problem.step, problem.hardware, answer.actions).step_ns
