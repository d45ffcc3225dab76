"""What each further decision would relieve and cost, one by one exactly or all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from teraio.planner.schedule import UNUSED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.schedule import Placement, Schedule


class Copying(NamedTuple):
    """An interval in which a tensor goes away only so that its copy is made, and its window."""

    interval: int
    gone: int
    back: int


class Option(NamedTuple):
    """A way to use an interval: what it relieves (see `Memory.relief`) and costs, in ns.

    With `copying` the tensor has been copied before, and so need only be dropped.
    """

    tier: str
    gone: int
    back: int
    relief: int
    cost_ns: int
    copying: Copying | None = None

    @property
    def ratio(self) -> float:
        """Relief per ns of cost."""
        return self.relief / self.cost_ns


class Options:
    """The ways to use each interval of a schedule, as it stands, except those `left_out`."""

    def __init__(self, schedule: Schedule, left_out: frozenset[int] = frozenset()) -> None:
        self.schedule = schedule
        self._left_out = left_out
        places = schedule.places
        count = range(len(places))
        self._sizes = np.array([schedule.size(k) for k in count], dtype=np.int64)
        self._family = np.array([p.family for p in places], dtype=np.int64)
        self._position = np.array([p.position for p in places], dtype=np.int64)
        self._members = np.array([len(p.members) for p in places], dtype=np.int64)
        self._clean = np.array([p.clean for p in places], dtype=np.bool_)
        self._read = {t: np.array(ns, dtype=np.int64) for t, ns in schedule.read_ns.items()}
        self._write = {t: np.array(ns, dtype=np.int64) for t, ns in schedule.write_ns.items()}
        self._may = {
            t: np.array([t in schedule.tiers_of(k) for k in count], dtype=np.bool_)
            for t in schedule.tiers
        }

    def in_time(self, index: int) -> Option | None:
        """Return how interval `index` can be used in the channel time that is left, if it can.

        The SSD is preferred; host memory serves where the SSD has no time and there is room.
        """
        if index in self.schedule.placed or index in self._left_out:
            return None
        for tier in self.schedule.tiers_of(index):
            option = self._in_time_to(index, tier)
            if option is not None and self.schedule.may_use(index, tier):
                return option
        return None

    def dropped(self, index: int) -> Option | None:
        """Return how interval `index` can be used in time if its copy is made before, if it can.

        The copy is made in an earlier interval of the same family, in which the channels have
        time to write it and to read it back.
        """
        schedule = self.schedule
        first, end = schedule.span(index)
        if first >= end or index in schedule.placed or index in self._left_out:
            return None
        for tier in schedule.tiers_of(index):
            if not schedule.needs_write(index, tier):
                continue
            start = schedule.channels.to_gpu(tier).start(first, end, schedule.read_ns[tier][index])
            copying = self._copying(index, tier) if start is not None and start > first else None
            if start is None or copying is None:
                continue
            relief = schedule.memory.relief(first, start, schedule.size(index))
            if (
                relief
                and schedule.may_use(copying.interval, tier)
                and schedule.may_use(index, tier)
            ):
                cost_ns = 2 * schedule.read_ns[tier][index] + schedule.write_ns[tier][index]
                return Option(tier, first, start - 1, relief, cost_ns, copying)
        return None

    def forced(self, index: int) -> Option | None:
        """Return how interval `index` can relieve every bin inside it that is over the budget.

        The cost is the channel time that its windows lack, which the device would have to wait
        for. None if it cannot relieve anything.
        """
        first, end = self.schedule.span(index)
        excess = self.schedule.memory.excess(first, end) if first < end else None
        if excess is None or index in self._left_out:
            return None
        placement = self.schedule.placed.get(index)
        if placement is not None:
            return self._widened(index, placement, *excess)
        options = [
            self._forced_to(index, tier, *excess)
            for tier in self.schedule.tiers_of(index)
            if self.schedule.may_use(index, tier)
        ]
        return min(options, key=lambda option: option.cost_ns, default=None)

    def in_time_limits(self) -> NDArray[np.float64]:
        """Return for each interval what the ratio of its `in_time` option cannot exceed."""
        schedule = self.schedule
        best = np.zeros(len(self._sizes))
        for tier in schedule.tiers:
            into, out = schedule.channels.to_gpu(tier), schedule.channels.to_tier(tier)
            start = into.starts(schedule.end, self._read[tier])
            gone = out.finishes(schedule.first, self._write[tier]) + 1
            gone = np.where(self._needs_write(tier), gone, schedule.first)
            relief = np.where(self._may[tier], self._relief_limits(gone, start), 0)
            best = np.maximum(best, relief / self._costs_ns(tier))
        best[[*schedule.placed, *self._left_out]] = 0
        return best

    def dropped_limits(self) -> NDArray[np.float64]:
        """Return for each interval what the ratio of its `dropped` option cannot exceed."""
        schedule = self.schedule
        best = np.zeros(len(self._sizes))
        for tier in schedule.tiers:
            start = schedule.channels.to_gpu(tier).starts(schedule.end, self._read[tier])
            may = self._may[tier] & self._needs_write(tier) & (self._position > 0)
            relief = np.where(may, self._relief_limits(schedule.first, start), 0)
            best = np.maximum(best, relief / (2 * self._read[tier] + self._write[tier]))
        best[[*schedule.placed, *self._left_out]] = 0
        return best

    def forced_limits(self) -> NDArray[np.float64]:
        """Return for each interval what the ratio of its `forced` option cannot exceed."""
        schedule = self.schedule
        first, end = schedule.first, np.maximum(schedule.first, schedule.end)
        low, high = schedule.memory.excesses(first, end)
        least = np.full(len(first), UNUSED)
        for tier in schedule.tiers:
            into, out = schedule.channels.to_gpu(tier), schedule.channels.to_tier(tier)
            write = np.maximum(0, self._write[tier] - out.frees_ns(first, low))
            read = np.maximum(0, self._read[tier] - into.frees_ns(high + 1, end))
            lack = read + np.where(self._needs_write(tier), write, 0) + 1
            least = np.where(self._may[tier], np.minimum(least, lack), least)
        least[list(schedule.placed)] = 1
        limits: NDArray[np.float64] = self._relief_limits(first, end) / least
        limits[list(self._left_out)] = 0
        return limits

    def _relief_limits(
        self, firsts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        ends = np.maximum(firsts, ends)
        return self.schedule.memory.relief_limits(firsts, ends, self._sizes)

    def _needs_write(self, tier: str) -> NDArray[np.bool_]:
        first_used = self.schedule.first_used[tier][self._family]
        return ~self._clean & (first_used >= self._position)

    def _costs_ns(self, tier: str) -> NDArray[np.int64]:
        unused = ~self._clean & (self.schedule.first_used[tier][self._family] == UNUSED)
        costs: NDArray[np.int64] = self._read[tier] + np.where(
            unused, self._write[tier] // self._members, 0
        )
        return costs

    def _in_time_to(self, index: int, tier: str) -> Option | None:
        schedule = self.schedule
        first, end = schedule.span(index)
        start = schedule.channels.to_gpu(tier).start(first, end, schedule.read_ns[tier][index])
        if start is None or start <= first:
            return None
        gone = first
        if schedule.needs_write(index, tier):
            channel, ns = schedule.channels.to_tier(tier), schedule.write_ns[tier][index]
            finish = channel.finish(first, start - 1, ns)
            if finish is None:
                return None
            gone = finish + 1
        relief = schedule.memory.relief(gone, start, schedule.size(index))
        if relief == 0:
            return None
        return Option(tier, gone, start - 1, relief, self._cost_ns(index, tier))

    def _copying(self, index: int, tier: str) -> Copying | None:
        """Return the latest interval before `index` in which its copy can be made in time."""
        schedule, place = self.schedule, self.schedule.places[index]
        for earlier in reversed(place.members[: place.position]):
            if earlier in schedule.placed or earlier in self._left_out:
                continue
            first, end = schedule.span(earlier)
            out, into = schedule.channels.to_tier(tier), schedule.channels.to_gpu(tier)
            start = into.start(first, end, schedule.read_ns[tier][earlier])
            if start is None or start <= first:
                continue
            finish = out.finish(first, start - 1, schedule.write_ns[tier][earlier])
            if finish is not None:
                return Copying(earlier, finish + 1, start - 1)
        return None

    def _cost_ns(self, index: int, tier: str) -> int:
        """Return the channel time of interval `index`.

        The time to write a copy is shared among all intervals that could use it.
        """
        schedule = self.schedule
        cost_ns = schedule.read_ns[tier][index]
        place = schedule.places[index]
        if not place.clean and not schedule.used(index, tier):
            cost_ns += schedule.write_ns[tier][index] // len(place.members)
        return cost_ns

    def _forced_to(self, index: int, tier: str, low: int, high: int) -> Option:
        schedule = self.schedule
        first, end = schedule.span(index)
        gone, cost_ns = first, 1
        if schedule.needs_write(index, tier):
            channel, ns = schedule.channels.to_tier(tier), schedule.write_ns[tier][index]
            finish = channel.finish(first, low, ns)
            gone = low if finish is None else finish + 1
            cost_ns += max(0, ns - channel.free_ns(first, low))
        channel, ns = schedule.channels.to_gpu(tier), schedule.read_ns[tier][index]
        start = channel.start(high + 1, end, ns)
        back = high if start is None else start - 1
        cost_ns += max(0, ns - channel.free_ns(high + 1, end))
        relief = schedule.memory.relief(gone, back + 1, schedule.size(index))
        return Option(tier, gone, back, relief, cost_ns)

    def _widened(self, index: int, placement: Placement, low: int, high: int) -> Option | None:
        """Return the option to be away from `low` to `high` too, at the cost of reserved time."""
        gone, back = min(low, placement.gone), max(high, placement.back)
        if (gone, back) == (placement.gone, placement.back):
            return None
        memory, size = self.schedule.memory, self.schedule.size(index)
        relief = memory.relief(gone, placement.gone, size)
        relief += memory.relief(placement.back + 1, back + 1, size)
        lost_ns = 0
        if placement.out is not None:
            lost_ns += int(placement.out.ns[max(0, gone - placement.out.first) :].sum())
        lost_ns += int(placement.into.ns[: max(0, back + 1 - placement.into.first)].sum())
        return Option(placement.tier, gone, back, relief, lost_ns + 1)
