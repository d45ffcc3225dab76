"""What a policy reaches: an answer that fits the budget, or the least budget that it can fit.

Which memory is possible at all is known (see `minimum`) unless host memory or SSD writes are
limited; then it depends on the policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from teraio.planner.absence import planned_peak
from teraio.planner.infeasible import looser
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.step import peak
from teraio.planner.units import format_bytes

if TYPE_CHECKING:
    from teraio.planner.problem import Policy, Problem

_CLOSE: Final = 100
"""The search for the least budget ends within this share of it, 1 %: after 7 to 10 answers."""


def answer_that_fits(problem: Problem, policy: Policy) -> Answer:
    """Return the policy's answer, none where the step fits without.

    Raises CannotFitError if the policy does or its answer does not fit.
    """
    if peak(problem.step) <= problem.planned_bytes:
        return Answer(())
    try:
        answer = policy(problem)
    except CannotFitError as error:
        error.hint = error.hint or looser(problem)
        raise
    reached = planned_peak(problem.step, answer.actions)
    if reached > problem.planned_bytes:
        budget = f"{problem.planned_bytes} bytes ({format_bytes(problem.planned_bytes)})"
        msg = f"the policy found no plan for {budget} under these limits"
        raise CannotFitError(msg, hint=looser(problem))
    return answer


def least_found(problem: Problem, policy: Policy) -> tuple[Problem, Answer]:
    """Return the problem with the least budget for which the policy finds an answer, and that.

    `problem` is one for which it finds none; with the step's peak nothing has to move.
    """
    low, high = problem.planned_bytes, peak(problem.step)
    best, answer = replace(problem, planned_bytes=high), Answer(())
    while high - low > max(1, high // _CLOSE):
        middle = replace(problem, planned_bytes=(low + high) // 2)
        try:
            found = answer_that_fits(middle, policy)
        except CannotFitError:
            low = middle.planned_bytes
        else:
            best, answer, high = middle, found, middle.planned_bytes
    return best, answer
