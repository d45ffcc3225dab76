"""The greedy policy: the interval that relieves most for its transfer time comes first.

After Algorithm 1 of TERAIO (arXiv 2506.06472), with the benefit as its text has it: only what
is really over the budget counts.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from teraio.planner.absence import absences
from teraio.planner.grid import Grid
from teraio.planner.minimum import least_memory
from teraio.planner.options import Options
from teraio.planner.problem import Answer
from teraio.planner.schedule import Schedule
from teraio.planner.simulate import Simulation, simulate_actions
from teraio.planner.slack import relax
from teraio.planner.step import peak
from teraio.planner.timing import Timeline, retime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from teraio.planner.options import Option
    from teraio.planner.plan import Action
    from teraio.planner.problem import Problem

_GOOD_ENOUGH: Final = 0.85
"""An option is taken if its ratio is at least this share of the best that may be possible. On
20 problems with steps of 300 to 9,800 ops, 1.0 looked at 0.9 to 4 times as many options; the
stall was between 1.9 % of the ideal step longer with it and 3.9 % shorter, the same on average."""

_ATTEMPTS: Final = 48
_LEVELS: Final = 16
_WORK: Final = 100_000
"""A step that still stalls is planned up to so many times, as often as its intervals and ops,
taken together, go into `_WORK`, but at least once. The last `_LEVELS` attempts are for budgets
from the least possible memory on."""

_ROUNDS: Final = 3
"""How often the windows are set anew in a step within `_WORK`, first for ideal times and then for
those that the best simulation gave; in a longer step it is done once. A fourth round shortened
no stall by more than 2 % of itself on those steps."""

_STALE: Final = 500
"""After this many options that turned out worse than their limits, all limits are taken anew."""

_LOOK: Final = 2000
"""Of so many of the best limits the options are looked at before all are taken anew."""

_REST: Final = -1


def greedy(problem: Problem) -> Answer:
    """Choose intervals until the step fits the budget; it does for every budget that can be met.

    First those that fit the free channel time; if memory is still over, those that do once
    their copies are made in intervals before; then those that make the device wait least. What
    turned out not to be needed is undone. The windows of what is left are set in a few ways,
    and those with the shortest stall are kept.

    A plan that stalls is improved on, as often as the size of the step allows: channels also
    have the time in which the best plan so far waits; the interval that it waits for longest is
    exchanged for others; and what was chosen for less memory is tried.
    """
    search = _Search(problem)
    search.stretch()
    search.exchange()
    search.tighten()
    return Answer(search.best.actions)


class _Timed(NamedTuple):
    """Actions and what they cost; `fits` is whether they keep the budget."""

    actions: tuple[Action, ...]
    simulation: Simulation
    fits: bool


class _Search:
    """The best plan so far, and how many more attempts the size of the step allows."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._grid = Grid.of(problem)
        self._left = min(_ATTEMPTS, _WORK // _work(problem)) - 1
        self._left_out: frozenset[int] = frozenset()
        self.best = _attempt(problem, self._grid, (), self._left_out)

    def stretch(self) -> None:
        """Give the channels the time in which the best plan waits, as long as that helps."""
        while self._may_improve() and self._try(self._problem, self._left_out):
            pass

    def exchange(self) -> None:
        """Leave out the interval that the best plan waits for longest, as long as there is one."""
        refused: set[int] = set()
        while self._left > _LEVELS and self._may_improve():
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
        least = least_memory(step, self._problem.intervals).nbytes
        for level in range(_LEVELS):
            budget = least + (peak(step) - least) * level // _LEVELS
            if budget < self._problem.planned_bytes and self._may_improve():
                self._try(replace(self._problem, planned_bytes=budget), frozenset())

    def _may_improve(self) -> bool:
        return self._left > 0 and self.best.simulation.stall_ns > 0

    def _try(self, problem: Problem, left_out: frozenset[int]) -> bool:
        """Make another attempt; return whether it is the best so far."""
        self._left -= 1
        waits = self.best.simulation.waits if problem is self._problem else ()
        other = _attempt(problem, self._grid, waits, left_out)
        if not other.fits or other.simulation.stall_ns >= self.best.simulation.stall_ns:
            return False
        self.best = other
        return True


def _work(problem: Problem) -> int:
    return len(problem.intervals) + len(problem.step.ops)


def _attempt(
    problem: Problem, grid: Grid, waits: Sequence[tuple[int, int]], left_out: frozenset[int]
) -> _Timed:
    """Plan for channels that also have the time of `waits`, (op, ns), without some intervals."""
    slots = problem.step.slots.copy()
    for op, ns in waits:
        slots[op - 1] += ns
    schedule = Schedule(problem, grid, slots)
    options = Options(schedule, left_out)
    _fill(schedule, options.in_time, options.in_time_limits)
    _fill(schedule, options.dropped, options.dropped_limits)
    _fill(schedule, options.forced, options.forced_limits)
    _undo(schedule)
    return _with_best_windows(schedule)


def _waited_for(problem: Problem, best: _Timed, refused: set[int]) -> int | None:
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


def _fill(
    schedule: Schedule,
    option_of: Callable[[int], Option | None],
    limits: Callable[[], NDArray[np.float64]],
) -> None:
    """Place the best option again and again until memory fits or no option is left.

    Options get worse as others are placed, so an old ratio is a limit: only the best by it is
    looked at anew, and placed if it is still good enough. Only intervals that share the copy of
    one that is placed may get better: what was seen of them is forgotten.
    """
    seen = np.full(len(schedule.problem.intervals), np.inf)
    sizes = np.array([schedule.size(k) for k in range(len(seen))], dtype=np.int64)
    while schedule.memory.worst() > 0:
        heap = _best_first(np.minimum(limits(), seen), sizes)
        if not heap:
            return
        wasted = 0
        while heap and heap[0][2] != _REST and wasted < _STALE and schedule.memory.worst() > 0:
            index = heapq.heappop(heap)[2]
            option = option_of(index)
            if option is not None and (not heap or option.ratio >= _GOOD_ENOUGH * -heap[0][0]):
                if option.copying is not None:
                    schedule.place(option.copying.interval, option.tier, *option.copying[1:])
                schedule.place(index, option.tier, option.gone, option.back)
                seen[list(schedule.families[index].members)] = np.inf
                continue
            seen[index] = option.ratio if option is not None else 0
            wasted += 1
            if option is not None:
                heapq.heappush(heap, (-option.ratio, -schedule.size(index), index))


def _best_first(
    limits: NDArray[np.float64], sizes: NDArray[np.int64]
) -> list[tuple[float, int, int]]:
    """Return (-limit, -size, index) of the intervals that may help, the best first.

    Of many, the best `_LOOK` are followed by one entry that stands for the rest.
    """
    helpful = np.flatnonzero(limits)
    order = helpful[np.lexsort((-sizes[helpful], -limits[helpful]))]
    top = order[:_LOOK]
    rows = zip((-limits[top]).tolist(), (-sizes[top]).tolist(), top.tolist(), strict=True)
    rest = [(-float(limits[order[_LOOK]]), 0, _REST)] if len(order) > _LOOK else []
    return [*rows, *rest]


def _undo(schedule: Schedule) -> None:
    """Stop using intervals that are not needed, those with the most transfer time first."""

    def cost(index: int) -> tuple[int, int]:
        placement = schedule.placed[index]
        ns = schedule.read_ns[placement.tier][index]
        if placement.write:
            ns += schedule.write_ns[placement.tier][index]
        return -ns, index

    removed = True
    while removed:
        removable = [k for k in sorted(schedule.placed, key=cost) if schedule.removable(k)]
        removed = bool(removable)
        for index in removable:
            if schedule.removable(index):
                schedule.remove(index)


def _with_best_windows(schedule: Schedule) -> _Timed:
    """Return the windows with the shortest stall among those that are tried."""
    step = schedule.problem.step
    best = _relaxed(schedule)
    waits: Sequence[tuple[int, int]] = ()
    for _ in range(_ROUNDS if _work(schedule.problem) <= _WORK else 1):
        if best.simulation.stall_ns == 0:
            break
        retime(schedule, Timeline.of(step, waits))
        other = _relaxed(schedule)
        if other.simulation.stall_ns < best.simulation.stall_ns:
            best = other
        waits = best.simulation.waits
    return best


def _relaxed(schedule: Schedule) -> _Timed:
    relax(schedule)
    problem, actions = schedule.problem, schedule.actions()
    simulation = simulate_actions(problem.step, problem.hardware, actions)
    return _Timed(actions, simulation, schedule.memory.worst() <= 0)
