"""Better and better plans for a step that stalls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from teraio.planner.absence import absences
from teraio.planner.attempt import Start, Timed, attempt, work
from teraio.planner.grid import Grid
from teraio.planner.minimum import least_memory
from teraio.planner.step import peak

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.problem import Problem

_ATTEMPTS: Final = 32
_WORK: Final = 30_000
"""A step that still stalls is planned up to so many times, as often as its intervals and ops,
taken together, go into `_WORK`, but at least once."""

_LEVELS: Final = 16
_SMALL: Final = 1_000
"""A step with no more intervals and ops is also planned for so many smaller budgets, from the
least possible memory on: these do not depend on its own budget, so that in more memory a plan that
was found in less is tried again."""


class Search:
    """The best plan so far, and how many more attempts the size of the step allows.

    `begin` comes first, once or more often.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._grid = Grid.of(problem)
        self._left = min(_ATTEMPTS, _WORK // work(problem)) - 1
        self._left_out: frozenset[int] = frozenset()
        self._start: Sequence[Start] = ()
        self._best: Timed | None = None

    @property
    def best(self) -> Timed:
        """The best plan so far."""
        if self._best is None:
            msg = "there is no plan before the search begins"
            raise ValueError(msg)
        return self._best

    @property
    def has_begun(self) -> bool:
        """Whether there is a plan, even if only one that does not fit."""
        return self._best is not None

    def begin(self, start: Sequence[Start] = (), waits: Sequence[tuple[int, int]] = ()) -> None:
        """Use the intervals of `start` before others, if that gives the best plan so far.

        The channels also have the time of `waits`, (op, ns).
        """
        if self._best is not None and not self._may_improve():
            return
        first = attempt(self._problem, self._grid, waits=waits, start=start)
        if self._best is None or self._is_better(first):
            self._best, self._start = first, start

    def stretch(self) -> None:
        """Give the channels the time in which the best plan waits, as long as that helps."""
        while self._left > 0 and self._may_improve() and self._try(self._problem, self._left_out):
            pass

    def exchange(self) -> None:
        """Leave out the interval that the best plan waits for longest, as long as there is one."""
        refused: set[int] = set()
        while self._left > 0 and self._may_improve():
            culprit = _waited_for(self._problem, self.best, refused)
            if culprit is None:
                return
            refused.add(culprit)
            left_out = self._left_out | {culprit}
            if self._try(self._problem, left_out):
                self._left_out = left_out

    def tighten(self) -> None:
        """Choose as for less memory: the budgets tried do not depend on this problem's."""
        step = self._problem.step
        if work(self._problem) > _SMALL:
            return
        least = least_memory(step, self._problem.intervals).nbytes
        for level in range(_LEVELS):
            budget = least + (peak(step) - least) * level // _LEVELS
            if budget < self._problem.planned_bytes and self._may_improve():
                self._try(replace(self._problem, planned_bytes=budget), frozenset())

    def _may_improve(self) -> bool:
        return _cost(self.best) > (False, 0)

    def _try(self, problem: Problem, left_out: frozenset[int]) -> bool:
        """Make another attempt; return whether it is the best so far."""
        self._left -= 1
        waits = self.best.simulation.waits if problem is self._problem else ()
        start = self._start if problem is self._problem else ()
        other = attempt(problem, self._grid, waits=waits, left_out=left_out, start=start)
        if not self._is_better(other):
            return False
        self._best = other
        return True

    def _is_better(self, other: Timed) -> bool:
        return _cost(other) < _cost(self.best)


def _cost(plan: Timed) -> tuple[bool, int]:
    """Return what is to be least: a plan that fits is better than any that does not."""
    return not plan.fits, plan.simulation.stall_ns


def _waited_for(problem: Problem, best: Timed, refused: set[int]) -> int | None:
    """Return the interval that the step waits for longest of those not `refused`, if any."""
    n_ops = len(problem.step.ops)
    index_of = {
        (problem.step.tensors[i.tensor].id, i.after_op): k for k, i in enumerate(problem.intervals)
    }
    due: dict[int, list[int]] = {}
    for offload, prefetch in absences(best.actions):
        index = index_of[offload.tensor, offload.after_op]
        due.setdefault(offload.gone_by_op, []).append(index)
        due.setdefault(prefetch.needed_by_op, []).append(index)
    for op, _ in sorted(best.simulation.waits, key=lambda wait: (-wait[1], wait[0])):
        for index in due.get(op % n_ops, []):
            if index not in refused:
                return index
    return None
