"""The policy that is taken if none is named: whichever of several the simulator finds fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from teraio.planner.absence import planned_peak
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
    """Return the answer of greedy, or of whichever is best if that one stalls or does not fit.

    The others are fluid and those of TERAIO and G10, so that no plan is slower than theirs. One
    that fits is better than one that does not. In a long step greedy's is taken if it fits.
    """
    name, best = "greedy", greedy(problem)
    if work(problem) > LONG and _fits(problem, best):
        return replace(best, policy=name)
    least = _cost(problem, best)
    for other, policy in {"fluid": fluid, "teraio2025": teraio2025, "g10": g10}.items():
        if least == (False, problem.step.period_ns):
            break
        try:
            answer = policy(problem)
        except (CannotFitError, SolverMissingError):
            continue
        cost = _cost(problem, answer)
        if cost < least:
            name, best, least = other, answer, cost
    return replace(best, policy=name)


def _cost(problem: Problem, answer: Answer) -> tuple[bool, int]:
    """Return whether an answer does not fit, and the ns of its step: both are to be least."""
    simulation = simulate_actions(problem.step, problem.hardware, answer.actions)
    return not _fits(problem, answer), simulation.step_ns


def _fits(problem: Problem, answer: Answer) -> bool:
    return planned_peak(problem.step, answer.actions) <= problem.planned_bytes
