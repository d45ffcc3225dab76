"""When ops run, and the windows that transfers then need when they are served in order.

Positions are unwrapped: op k of the next step is k + n_ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from teraio.planner.schedule import Schedule
    from teraio.planner.step import Step


@dataclass(frozen=True)
class Timeline:
    """When each op starts and ends, in ns, in a step that repeats every `period_ns`."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    period_ns: int

    @classmethod
    def of(cls, step: Step, waits: Iterable[tuple[int, int]] = ()) -> Timeline:
        """Return the timeline of a step in which each (op, ns) of `waits` makes that op wait."""
        late = np.zeros(len(step.ops), dtype=np.int64)
        for op, ns in waits:
            late[op] += ns
        late = np.cumsum(late)
        return cls(step.starts + late, step.ends + late, step.period_ns + int(late[-1]))

    def start(self, position: int) -> int:
        """Return when the op at `position` starts."""
        turn, op = divmod(position, len(self.starts))
        return int(self.starts[op]) + turn * self.period_ns

    def first_start(self, ns: int) -> int:
        """Return the first position whose op starts at `ns` or later."""
        origin = int(self.starts[0])
        turn, rest = divmod(ns - origin, self.period_ns)
        return turn * len(self.starts) + int(self.starts.searchsorted(rest + origin))

    def first_starts(self, ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `first_start` of each of many times."""
        origin = int(self.starts[0])
        turn, rest = np.divmod(ns - origin, self.period_ns)
        return turn * len(self.starts) + self.starts.searchsorted(rest + origin)

    def last_end(self, ns: int) -> int:
        """Return the last position whose op has ended at `ns`."""
        turn, rest = divmod(ns, self.period_ns)
        return turn * len(self.ends) + int(self.ends.searchsorted(rest, side="right")) - 1


def retime(schedule: Schedule, timeline: Timeline) -> None:
    """Set all windows anew for channels that serve transfers in order, as memory allows.

    An offload is gone when it is done, those before it served first. A prefetch starts as late
    as it may if those with later deadlines start as late as they may. Windows that do not fit
    the memory end up shorter than that.
    """
    for index in schedule.placed:
        first, end = schedule.span(index)
        schedule.move(index, first, end - 1)
    for tier in schedule.tiers:
        for index, gone in _done_in_order(schedule, tier, timeline).items():
            placement = schedule.placed[index]
            end = min(schedule.grid.inside(gone), placement.back)
            gone = schedule.memory.room_after(placement.gone, end, schedule.size(index))
            schedule.move(index, gone, placement.back)
        for index, back in _started_in_order(schedule, tier, timeline).items():
            placement = schedule.placed[index]
            first = max(schedule.grid.holding(back + 1) - 1, placement.gone) + 1
            back = schedule.memory.room_before(first, placement.back + 1, schedule.size(index)) - 1
            schedule.move(index, placement.gone, back)


def _done_in_order(schedule: Schedule, tier: str, timeline: Timeline) -> dict[int, int]:
    """Return the op by whose start each writing offload is done, in the order of their starts."""
    jobs = sorted(
        (int(timeline.ends[schedule.problem.intervals[index].after_op]), index)
        for index, placement in schedule.placed.items()
        if placement.tier == tier and placement.write
    )
    gone: dict[int, int] = {}
    free_ns = 0
    for turn_ns in (0, timeline.period_ns):
        for release_ns, index in jobs:
            free_ns = max(free_ns, release_ns + turn_ns) + schedule.write_ns[tier][index]
            gone[index] = timeline.first_start(free_ns - turn_ns)
    return gone


def _started_in_order(schedule: Schedule, tier: str, timeline: Timeline) -> dict[int, int]:
    """Return the op after which each prefetch must start, in reverse order of their deadlines."""
    n_ops, intervals = schedule.grid.n_ops, schedule.problem.intervals
    jobs = sorted(
        (
            (intervals[index].needed_by_op % n_ops, index)
            for index, placement in schedule.placed.items()
            if placement.tier == tier
        ),
        reverse=True,
    )
    back: dict[int, int] = {}
    free_ns = 2 * timeline.period_ns
    for turn_ns in (0, -timeline.period_ns):
        for deadline, index in jobs:
            due_ns = timeline.start(deadline) + turn_ns
            free_ns = min(free_ns, due_ns) - schedule.read_ns[tier][index]
            turn = intervals[index].needed_by_op - deadline
            back[index] = timeline.last_end(free_ns - turn_ns) + turn
    return back
