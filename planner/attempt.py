"""One attempt at a plan: choose what moves, then when, and see what that costs."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from teraio.planner.options import Options
from teraio.planner.schedule import Schedule
from teraio.planner.simulate import Simulation, simulate_actions
from teraio.planner.slack import relax
from teraio.planner.timing import Timeline, retime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from teraio.planner.grid import Grid
    from teraio.planner.options import Option
    from teraio.planner.plan import Action
    from teraio.planner.problem import Problem

_GOOD_ENOUGH: Final = 0.85
"""An option is taken if its ratio is at least this share of the best that may be possible. In 27
first attempts at steps of 600 to 9,800 ops that wait, 1.0 looked at 1.1 to 4.9 times as many
options; the steps were up to 0.38 of the ideal one shorter or longer, 0.02 longer on average."""

LONG: Final = 100_000
"""A step is long if it has more intervals and ops, taken together."""

_GOOD_ENOUGH_LONG: Final = 0.4
"""The same in a long step. On six steps of 110,000 to 216,000 that stall, half as many options
were looked at as with 0.85, and the steps were 2.3 % shorter to 1.0 % longer."""

_ROUNDS: Final = 3
"""How often the windows are set anew in a step that is not long, first for ideal times and then for
those that the best simulation gave; in a longer step that does not wait it is done once. In those
attempts a fourth round shortened the stall by up to 2.1 % of itself, the third by up to 3.1 %."""

_STALE: Final = 500
"""After this many options that turned out worse than their limits, all limits are taken anew. In
a long step it is as many more as the step is longer, so that it is not done more often."""

_LOOK: Final = 4
"""Of so many times as many of the best limits the options are looked at before that, at most."""

_REST: Final = -1


class Timed(NamedTuple):
    """Actions and what they cost; `fits` is whether they keep the budget."""

    actions: tuple[Action, ...]
    simulation: Simulation
    fits: bool


class Start(NamedTuple):
    """An interval to use whatever else is: absent at ops `gone` to `back`, in its own count."""

    interval: int
    tier: str
    gone: int
    back: int


def work(problem: Problem) -> int:
    """Return the intervals and ops of a problem: what the time for an attempt grows with."""
    return len(problem.intervals) + len(problem.step.ops)


def attempt(
    problem: Problem,
    grid: Grid,
    *,
    waits: Sequence[tuple[int, int]] = (),
    left_out: frozenset[int] = frozenset(),
    start: Sequence[Start] = (),
) -> Timed:
    """Plan for channels that also have the time of `waits`, (op, ns), without some intervals.

    First come the intervals of `start`; then those that relieve most for their transfer time
    and fit the free channel time; if memory is still over, those that do once their copies are
    made in intervals before; then those that make the device wait least. What turned out not
    to be needed is undone. Of a few ways to set the windows the best is taken; in a long step
    that has to wait only those that were reserved, which were the best each time.
    """
    slots = problem.step.slots.copy()
    for op, ns in waits:
        slots[op - 1] += ns
    schedule = Schedule(problem, grid, slots)
    _begin(schedule, [one for one in start if one.interval not in left_out])
    options = Options(schedule, left_out)
    _fill(schedule, options.in_time, options.in_time_limits)
    _fill(schedule, options.dropped, options.dropped_limits)
    in_time = schedule.memory.worst() <= 0
    _fill(schedule, options.forced, options.forced_limits)
    _undo(schedule)
    if work(problem) > LONG and not in_time:
        return _relaxed(schedule)
    return _with_best_windows(schedule)


def _begin(schedule: Schedule, start: Sequence[Start]) -> None:
    for index, tier, gone, back in start:
        first, end = schedule.span(index)
        away = max(first, schedule.grid.inside(gone)), min(end, schedule.grid.holding(back + 1))
        if away[0] < away[1] and schedule.may_use(index, tier):
            schedule.place(index, tier, away[0], away[1] - 1)


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
    size = work(schedule.problem)
    good_enough = _GOOD_ENOUGH if size <= LONG else _GOOD_ENOUGH_LONG
    stale = _STALE * max(size, LONG) // LONG
    seen = np.full(len(schedule.problem.intervals), np.inf)
    sizes = np.array([schedule.size(k) for k in range(len(seen))], dtype=np.int64)
    over = schedule.memory.worst() > 0
    while over:
        heap = _best_first(np.minimum(limits(), seen), sizes, _LOOK * stale)
        if not heap:
            return
        wasted = 0
        while over and heap and heap[0][2] != _REST and wasted < stale:
            index = heapq.heappop(heap)[2]
            option = option_of(index)
            if option is not None and (not heap or option.ratio >= good_enough * -heap[0][0]):
                if option.copying is not None:
                    schedule.place(option.copying.interval, option.tier, *option.copying[1:])
                schedule.place(index, option.tier, option.gone, option.back)
                seen[list(schedule.places[index].members)] = np.inf
                over = schedule.memory.worst() > 0
                continue
            seen[index] = option.ratio if option is not None else 0
            wasted += 1
            if option is not None:
                heapq.heappush(heap, (-option.ratio, -schedule.size(index), index))


def _best_first(
    limits: NDArray[np.float64], sizes: NDArray[np.int64], most: int
) -> list[tuple[float, int, int]]:
    """Return (-limit, -size, index) of the intervals that may help, the best first.

    If there are more than `most`, one entry stands for the rest.
    """
    helpful = np.flatnonzero(limits)
    order = helpful[np.lexsort((-sizes[helpful], -limits[helpful]))]
    top = order[:most]
    rows = zip((-limits[top]).tolist(), (-sizes[top]).tolist(), top.tolist(), strict=True)
    rest = [(-float(limits[order[most]]), 0, _REST)] if len(order) > most else []
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


def _with_best_windows(schedule: Schedule) -> Timed:
    """Return the windows with the shortest stall among those that are tried."""
    step = schedule.problem.step
    best = _relaxed(schedule)
    waits: Sequence[tuple[int, int]] = ()
    for _ in range(_ROUNDS if work(schedule.problem) <= LONG else 1):
        if best.simulation.stall_ns == 0:
            break
        retime(schedule, Timeline.of(step, waits))
        other = _relaxed(schedule)
        if other.simulation.stall_ns < best.simulation.stall_ns:
            best = other
        waits = best.simulation.waits
    return best


def _relaxed(schedule: Schedule) -> Timed:
    relax(schedule)
    problem, actions = schedule.problem, schedule.actions()
    simulation = simulate_actions(problem.step, problem.hardware, actions)
    return Timed(actions, simulation, schedule.memory.worst() <= 0)
