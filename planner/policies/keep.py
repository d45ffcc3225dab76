"""Nothing moves: the step as it would run with unlimited memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.step import peak
from teraio.planner.units import format_bytes

if TYPE_CHECKING:
    from teraio.planner.problem import Problem


def keep(problem: Problem) -> Answer:
    """Move nothing. In a comparison this is the ideal that the paper's results are shares of.

    Raises CannotFitError if the step does not fit: below its peak there is no such plan.
    """
    needed = peak(problem.step)
    if needed > problem.planned_bytes:
        msg = f"with nothing moved, the step needs {format_bytes(needed)}"
        raise CannotFitError(msg)
    return Answer(())
