"""The greedy policy: the interval that relieves most for its transfer time comes first.

After Algorithm 1 of TERAIO (arXiv 2506.06472), with the benefit as its text has it: only what
is really over the budget counts.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from teraio.planner.problem import Answer
from teraio.planner.schedule import Schedule
from teraio.planner.simulate import simulate_actions
from teraio.planner.slack import relax

if TYPE_CHECKING:
    from collections.abc import Callable

    from teraio.planner.problem import Problem
    from teraio.planner.schedule import Option


def greedy(problem: Problem) -> Answer:
    """Choose intervals until the step fits the budget; it does for every budget that can be met.

    First those that fit the free channel time; then, if memory is still over, those that make
    the device wait least. What turned out not to be needed is undone, and windows are widened
    where memory allows.
    """
    schedule = Schedule(problem)
    _fill(schedule, schedule.in_time, _limits(schedule))
    _fill(schedule, schedule.forced, _limits(schedule))
    _undo(schedule)
    tight = schedule.actions()
    relax(schedule)
    loose = schedule.actions()
    stalls = [
        simulate_actions(problem.step, problem.hardware, actions).stall_ns
        for actions in (loose, tight)
    ]
    return Answer(tight if stalls[1] < stalls[0] else loose)


def _limits(schedule: Schedule) -> list[float]:
    """Return what the ratio of no option of each interval can exceed."""
    problem = schedule.problem
    intervals = problem.intervals
    if not intervals:
        return []
    rows = np.array([(i.after_op + 1, i.needed_by_op) for i in intervals], dtype=np.int64)
    sizes = np.array([schedule.size(index) for index in range(len(intervals))], dtype=np.int64)
    limits = schedule.memory.relief_limits(rows[:, 0], rows[:, 1], sizes).tolist()
    return [
        limit / max(1, min(schedule.read_ns(index, tier) for tier in schedule.tiers))
        for index, limit in enumerate(limits)
    ]


def _fill(
    schedule: Schedule, option_of: Callable[[int], Option | None], limits: list[float]
) -> None:
    """Place the best option again and again until memory fits or no option is left.

    Options mostly get worse as others are placed, so an old ratio is a limit: only the best by
    it is looked at anew, and placed if it is still the best.
    """
    heap = [(-limit, index) for index, limit in enumerate(limits) if limit > 0]
    heapq.heapify(heap)
    latest = {index: key for key, index in heap}
    while heap and schedule.memory.worst() > 0:
        key, index = heapq.heappop(heap)
        if latest.get(index) != key:
            continue
        option = option_of(index)
        if option is None:
            del latest[index]
            continue
        latest[index] = -option.ratio
        if heap and -option.ratio > heap[0][0]:
            heapq.heappush(heap, (-option.ratio, index))
            continue
        schedule.place(index, option.tier, option.gone, option.back)
        del latest[index]
        _look_again(schedule, option_of, index, heap, latest)


def _look_again(
    schedule: Schedule,
    option_of: Callable[[int], Option | None],
    index: int,
    heap: list[tuple[float, int]],
    latest: dict[int, float],
) -> None:
    """Renew the ratios of intervals that may have become cheaper: they share the copy."""
    for member in schedule.families[index].members:
        if member not in schedule.placed:
            option = option_of(member)
            if option is not None:
                latest[member] = -option.ratio
                heapq.heappush(heap, (-option.ratio, member))


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
