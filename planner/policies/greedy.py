"""The greedy policy: the interval that relieves most for its transfer time comes first.

After Algorithm 1 of TERAIO (arXiv 2506.06472), with the benefit as its text has it: only what
is really over the budget counts.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from teraio.planner.problem import Answer
from teraio.planner.schedule import Schedule
from teraio.planner.simulate import Simulation, simulate_actions
from teraio.planner.slack import relax
from teraio.planner.timing import Timeline, retime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from teraio.planner.plan import Action
    from teraio.planner.problem import Problem
    from teraio.planner.schedule import Option

_GOOD_ENOUGH: Final = 0.85
"""An option is taken if its ratio is at least this share of the best that may be possible. On
20 problems with steps of 300 to 9,800 ops, 1.0 looked at 0.9 to 4 times as many options; the
stall was between 1.9 % of the ideal step longer with it and 3.9 % shorter, the same on average."""

_ROUNDS: Final = 3
"""How often the windows are set anew, first for ideal times and then for those that the best
simulation gave. A fourth round shortened no stall by more than 2 % of itself on those steps."""


def greedy(problem: Problem) -> Answer:
    """Choose intervals until the step fits the budget; it does for every budget that can be met.

    First those that fit the free channel time; then, if memory is still over, those that make
    the device wait least. What turned out not to be needed is undone. The windows of what is
    left are set in a few ways, and those with the shortest stall are kept.
    """
    schedule = Schedule(problem)
    limits = _relief_limits(schedule)
    _fill(schedule, schedule.in_time, limits)
    _fill(schedule, schedule.forced, limits)
    _undo(schedule)
    return Answer(_with_best_windows(schedule))


def _relief_limits(schedule: Schedule) -> list[int]:
    """Return what the relief of no option of each interval can exceed."""
    intervals = schedule.problem.intervals
    rows = np.array(
        [(i.after_op + 1, i.needed_by_op, schedule.size(k)) for k, i in enumerate(intervals)],
        dtype=np.int64,
    ).reshape(-1, 3)
    limits: list[int] = schedule.memory.relief_limits(rows[:, 0], rows[:, 1], rows[:, 2]).tolist()
    return limits


def _fill(schedule: Schedule, option_of: Callable[[int], Option | None], limits: list[int]) -> None:
    """Place the best option again and again until memory fits or no option is left.

    Options get worse as others are placed, so an old ratio is a limit: only the best by it is
    looked at anew, and placed if it is still good enough. Only intervals that share the copy of
    one that is placed may get better: their limits are renewed.
    """
    costs = [schedule.cost_ns(index) for index in range(len(limits))]
    best = {k: limit / costs[k] for k, limit in enumerate(limits) if limit}
    heap = [(-ratio, -schedule.size(index), index) for index, ratio in best.items()]
    heapq.heapify(heap)
    over = schedule.memory.worst() > 0
    while heap and over:
        negative, _, index = heapq.heappop(heap)
        if best.get(index) != -negative:
            continue
        option = option_of(index)
        if option is None:
            del best[index]
        elif heap and option.ratio < _GOOD_ENOUGH * -heap[0][0]:
            best[index] = option.ratio
            heapq.heappush(heap, (-option.ratio, -schedule.size(index), index))
        else:
            del best[index]
            schedule.place(index, option.tier, option.gone, option.back)
            over = schedule.memory.worst() > 0
            for member in schedule.families[index].members:
                cost_ns = schedule.cost_ns(member)
                if cost_ns < costs[member] and member not in schedule.placed:
                    costs[member], best[member] = cost_ns, limits[member] / cost_ns
                    heapq.heappush(heap, (-best[member], -schedule.size(member), member))


def _undo(schedule: Schedule) -> None:
    """Stop using intervals that are not needed, those with the most transfer time first."""

    def cost(index: int) -> tuple[int, int]:
        placement = schedule.placed[index]
        ns = schedule.read_ns(index, placement.tier)
        if placement.write:
            ns += schedule.write_ns(index, placement.tier)
        return -ns, index

    for index in sorted(schedule.placed, key=cost):
        if schedule.removable(index):
            schedule.remove(index)


class _Timed(NamedTuple):
    actions: tuple[Action, ...]
    simulation: Simulation


def _with_best_windows(schedule: Schedule) -> tuple[Action, ...]:
    """Return the actions of the windows with the shortest stall among those that are tried."""
    step = schedule.problem.step
    best = _relaxed(schedule)
    waits: Sequence[tuple[int, int]] = ()
    for _ in range(_ROUNDS):
        if best.simulation.stall_ns == 0:
            break
        retime(schedule, Timeline.of(step, waits))
        other = _relaxed(schedule)
        if other.simulation.stall_ns < best.simulation.stall_ns:
            best = other
        waits = best.simulation.waits
    return best.actions


def _relaxed(schedule: Schedule) -> _Timed:
    relax(schedule)
    problem, actions = schedule.problem, schedule.actions()
    return _Timed(actions, simulate_actions(problem.step, problem.hardware, actions))
