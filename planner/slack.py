"""Slack: prefetches start earlier and offloads may end later, where memory allows.

Reservations are as late and as early as they can be; a real drive is not that punctual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from teraio.planner.timing import Timeline

if TYPE_CHECKING:
    from teraio.planner.schedule import Schedule

_FAIR: Final = 1
_ALL: Final = None


def relax(schedule: Schedule) -> None:
    """Widen the windows of all transfers where memory allows.

    In a first round each gets at most the time of one more transfer of its size, so that the
    first in line do not take all the room; then all that is left is given out.
    """
    timeline = Timeline.of(schedule.problem.step)
    for share in (_FAIR, _ALL):
        for tier in schedule.tiers:
            _prefetch_earlier(schedule, tier, timeline, share)
            _offload_later(schedule, tier, timeline, share)


def _prefetch_earlier(schedule: Schedule, tier: str, timeline: Timeline, share: int | None) -> None:
    """Start prefetches earlier, but in the order of their deadlines.

    A channel serves transfers in the order in which they start, so one with a late deadline
    must not start before one with an early deadline.
    """
    n_bins, grid = schedule.n_bins, schedule.grid
    order = sorted(
        (schedule.span(index)[1] % n_bins, index)
        for index, placement in schedule.placed.items()
        if placement.tier == tier
    )
    if not order:
        return
    deadline, last = order[-1]
    before = schedule.placed[last].back - schedule.span(last)[1] + deadline - n_bins
    for deadline, index in order:
        placement = schedule.placed[index]
        turn = schedule.span(index)[1] - deadline
        first = max(placement.gone, before + turn)
        if share is not None:
            ns = share * schedule.read_ns[tier][index]
            limit_ns = timeline.start(grid.first_op(placement.back)) - ns
            first = max(first, grid.inside(timeline.first_start(limit_ns)))
        back = schedule.memory.room_before(first + 1, placement.back + 1, schedule.size(index)) - 1
        if back < placement.back:
            schedule.move(index, placement.gone, back)
        before = placement.back - turn


def _offload_later(schedule: Schedule, tier: str, timeline: Timeline, share: int | None) -> None:
    """Let offloads that write end later."""
    grid = schedule.grid
    for index, placement in sorted(schedule.placed.items()):
        if placement.tier != tier or not placement.write:
            continue
        end = placement.back
        if share is not None:
            ns = share * schedule.write_ns[tier][index]
            limit_ns = timeline.start(grid.first_op(placement.gone)) + ns
            end = min(end, grid.inside(timeline.first_start(limit_ns)))
        gone = schedule.memory.room_after(placement.gone, end, schedule.size(index))
        if gone > placement.gone:
            schedule.move(index, gone, placement.back)
