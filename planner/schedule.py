"""What a policy has decided so far, and what each further decision would bring and cost.

Positions are unwrapped: op k of the next step is k + n_ops.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from teraio.planner.bandwidth import Channels, Taken, add_cyclic, transfer_ns
from teraio.planner.copies import families
from teraio.planner.memory import Memory
from teraio.planner.plan import HOST, SSD, Action, Offload, Prefetch
from teraio.planner.step import demand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from teraio.planner.problem import Problem
    from teraio.planner.step import Interval


@dataclass(slots=True)
class Placement:
    """An interval that is used: the tensor is absent at ops `gone` to `back`."""

    tier: str
    gone: int
    back: int
    write: bool
    out: Taken | None
    into: Taken


class Option(NamedTuple):
    """A way to use an interval: what it relieves (see `Memory.relief`) and costs, in ns."""

    tier: str
    gone: int
    back: int
    relief: int
    cost_ns: int

    @property
    def ratio(self) -> float:
        """Relief per ns of cost."""
        return self.relief / self.cost_ns


@dataclass(frozen=True, slots=True)
class _Item:
    """An interval with what is looked up again and again."""

    first: int
    end: int
    size: int
    read_ns: dict[str, int]
    write_ns: dict[str, int]

    @classmethod
    def of(cls, problem: Problem, interval: Interval, tiers: tuple[str, ...]) -> _Item:
        tensor, hardware = problem.step.tensors[interval.tensor], problem.hardware
        reads = {t: transfer_ns(hardware, t, tensor.nbytes, to_gpu=True) for t in tiers}
        writes = {t: transfer_ns(hardware, t, tensor.nbytes, to_gpu=False) for t in tiers}
        return cls(interval.after_op + 1, interval.needed_by_op, tensor.size, reads, writes)


class Schedule:
    """The intervals used so far, with the memory and the channel time they leave."""

    def __init__(self, problem: Problem) -> None:
        step = problem.step
        self.problem = problem
        self.n_ops = len(step.ops)
        self.memory = Memory(demand(step), problem.planned_bytes, step.slots)
        self.channels = Channels(step.slots)
        self.placed: dict[int, Placement] = {}
        self.families = families(step, problem.intervals)
        self._items = [_Item.of(problem, interval, self.tiers) for interval in problem.intervals]
        self._positions: dict[tuple[int, str], list[int]] = {}
        self._host_used = np.zeros(2 * self.n_ops, dtype=np.int64)
        self._host_spans: dict[int, list[tuple[int, int]]] = {}
        self._intervals_of: dict[int, list[int]] = {}
        for index, interval in enumerate(problem.intervals):
            self._intervals_of.setdefault(interval.tensor, []).append(index)

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers that may be used, in the order of preference."""
        return (SSD, HOST) if self.problem.host_bytes else (SSD,)

    def size(self, index: int) -> int:
        """Return the bytes that interval `index` frees."""
        return self._items[index].size

    def read_ns(self, index: int, tier: str) -> int:
        """Return the ns that it takes to bring interval `index`'s tensor back."""
        return self._items[index].read_ns[tier]

    def write_ns(self, index: int, tier: str) -> int:
        """Return the ns that it takes to write interval `index`'s tensor."""
        return self._items[index].write_ns[tier]

    def cost_ns(self, index: int) -> int:
        """Return the channel time that using interval `index` would take, in the faster tier."""
        return min(self._cost_ns(index, tier) for tier in self.tiers)

    def needs_write(self, index: int, tier: str) -> bool:
        """Return whether the tier would have no current copy when interval `index` begins."""
        place = self.families[index]
        used = self._used(index, tier)
        return not place.clean and (not used or used[0] >= place.position)

    def in_time(self, index: int) -> Option | None:
        """Return how interval `index` can be used in the channel time that is left, if it can.

        The SSD is preferred; host memory serves where the SSD has no time and there is room.
        """
        for tier in self.tiers:
            option = self._in_time_to(index, tier)
            if option is not None and (tier == SSD or self._host_fits(index)):
                return option
        return None

    def forced(self, index: int) -> Option | None:
        """Return how interval `index` can relieve every op inside it that is over the budget.

        The cost is the channel time that its windows lack, which the device would have to wait
        for. None if it cannot relieve anything.
        """
        item = self._items[index]
        excess = self.memory.excess(item.first, item.end)
        if excess is None:
            return None
        placement = self.placed.get(index)
        if placement is not None:
            return self._widened(index, placement, *excess)
        options = [
            self._forced_to(index, tier, *excess)
            for tier in self.tiers
            if tier == SSD or self._host_fits(index)
        ]
        return min(options, key=lambda option: option.cost_ns)

    def place(self, index: int, tier: str, gone: int, back: int) -> None:
        """Use interval `index`: away from op `gone` to op `back`."""
        if index in self.placed:
            self.remove(index)
        interval = self.problem.intervals[index]
        write = self.needs_write(index, tier)
        out = None
        if write:
            self._become_drops(self._later(index, tier))
            ns = self.write_ns(index, tier)
            out = self.channels.to_tier(tier).take_early(interval.after_op + 1, gone, ns)
        ns = self.read_ns(index, tier)
        into = self.channels.to_gpu(tier).take_late(back + 1, interval.needed_by_op, ns)
        self.placed[index] = Placement(tier, gone, back, write, out, into)
        insort(self._used(index, tier), self.families[index].position)
        self.memory.add(gone, back + 1, -self.size(index))
        self._account_host(interval.tensor)

    def remove(self, index: int) -> None:
        """Do not use interval `index` after all; no other may depend on the copy it makes."""
        placement = self.placed.pop(index)
        self._used(index, placement.tier).remove(self.families[index].position)
        if placement.out is not None:
            self.channels.to_tier(placement.tier).give_back(placement.out)
        self.channels.to_gpu(placement.tier).give_back(placement.into)
        self.memory.add(placement.gone, placement.back + 1, self.size(index))
        self._account_host(self.problem.intervals[index].tensor)

    def removable(self, index: int) -> bool:
        """Return whether memory still suffices, and no drop lacks its copy, without `index`."""
        placement = self.placed[index]
        if placement.write and self._later(index, placement.tier):
            return False
        return self.memory.fits(placement.gone, placement.back + 1, self.size(index))

    def move(self, index: int, gone: int, back: int) -> None:
        """Change the window of a used interval, leaving the channel time as it is reserved."""
        placement = self.placed[index]
        size = self.size(index)
        self.memory.add(placement.gone, gone, size)
        self.memory.add(gone, placement.gone, -size)
        self.memory.add(back + 1, placement.back + 1, size)
        self.memory.add(placement.back + 1, back + 1, -size)
        placement.gone, placement.back = gone, back

    def actions(self) -> tuple[Action, ...]:
        """Return the plan's actions in op order; transfers that must end first come first."""
        keyed: list[tuple[tuple[int, ...], Action]] = []
        for index, placement in self.placed.items():
            interval = self.problem.intervals[index]
            tensor = self.problem.step.tensors[interval.tensor].id
            offload = Offload(
                tensor,
                placement.tier,
                interval.after_op,
                placement.gone % self.n_ops,
                placement.write,
            )
            after_op = placement.back % self.n_ops
            needed_by_op = interval.needed_by_op % self.n_ops
            prefetch = Prefetch(tensor, placement.tier, after_op, needed_by_op)
            urgency = placement.gone - interval.after_op
            keyed.append(((interval.after_op, 0, urgency, tensor), offload))
            urgency = interval.needed_by_op - placement.back
            keyed.append(((after_op, 1, urgency, tensor), prefetch))
        return tuple(action for _, action in sorted(keyed, key=lambda pair: pair[0]))

    def _is_in(self, index: int, tier: str) -> bool:
        return index in self.placed and self.placed[index].tier == tier

    def _used(self, index: int, tier: str) -> list[int]:
        """Return the used positions, in order, of interval `index`'s family in the tier."""
        return self._positions.setdefault((self.families[index].family, tier), [])

    def _later(self, index: int, tier: str) -> list[int]:
        """Return the used intervals that follow `index` in its family, in the same tier."""
        place, used = self.families[index], self._used(index, tier)
        return [place.members[p] for p in used[bisect_right(used, place.position) :]]

    def _become_drops(self, indices: Iterable[int]) -> None:
        for index in indices:
            placement = self.placed[index]
            if placement.out is not None:
                self.channels.to_tier(placement.tier).give_back(placement.out)
                placement.out, placement.write = None, False
                self.move(index, self.problem.intervals[index].after_op + 1, placement.back)

    def _in_time_to(self, index: int, tier: str) -> Option | None:
        item = self._items[index]
        gone, ns = item.first, item.read_ns[tier]
        start = self.channels.to_gpu(tier).start(item.first, item.end, ns)
        if start is None or start <= item.first:
            return None
        if self.needs_write(index, tier):
            ns = item.write_ns[tier]
            finish = self.channels.to_tier(tier).finish(item.first, start - 1, ns)
            if finish is None:
                return None
            gone = finish + 1
        relief = self.memory.relief(gone, start, item.size)
        if relief == 0:
            return None
        return Option(tier, gone, start - 1, relief, self._cost_ns(index, tier))

    def _cost_ns(self, index: int, tier: str) -> int:
        """Return the channel time of interval `index`.

        The time to write a copy is shared among all intervals that could use it.
        """
        cost_ns = self._items[index].read_ns[tier]
        if self.needs_write(index, tier) and not self._later(index, tier):
            cost_ns += self._items[index].write_ns[tier] // len(self.families[index].members)
        return cost_ns

    def _forced_to(self, index: int, tier: str, low: int, high: int) -> Option:
        item = self._items[index]
        first, end = item.first, item.end
        gone, cost_ns = first, 1
        if self.needs_write(index, tier):
            ns = item.write_ns[tier]
            channel = self.channels.to_tier(tier)
            finish = channel.finish(first, low, ns)
            gone = low if finish is None else finish + 1
            cost_ns += max(0, ns - channel.free_ns(first, low))
        ns = item.read_ns[tier]
        channel = self.channels.to_gpu(tier)
        start = channel.start(high + 1, end, ns)
        back = high if start is None else start - 1
        cost_ns += max(0, ns - channel.free_ns(high + 1, end))
        relief = self.memory.relief(gone, back + 1, self.size(index))
        return Option(tier, gone, back, relief, cost_ns)

    def _widened(self, index: int, placement: Placement, low: int, high: int) -> Option | None:
        """Return the option to be away from `low` to `high` too, at the cost of reserved time."""
        gone, back = min(low, placement.gone), max(high, placement.back)
        if (gone, back) == (placement.gone, placement.back):
            return None
        size = self.size(index)
        relief = self.memory.relief(gone, placement.gone, size)
        relief += self.memory.relief(placement.back + 1, back + 1, size)
        lost_ns = 0
        if placement.out is not None:
            lost_ns += int(placement.out.ns[max(0, gone - placement.out.first) :].sum())
        lost_ns += int(placement.into.ns[: max(0, back + 1 - placement.into.first)].sum())
        return Option(placement.tier, gone, back, relief, lost_ns + 1)

    def _host_fits(self, index: int) -> bool:
        """Return whether host memory has room for the copy, if interval `index` were to use it."""
        tensor = self.problem.intervals[index].tensor
        size = self.size(index)
        if size > self.problem.host_bytes:
            return False
        self._hold(self._host_spans.get(tensor, []), -size)
        spans = self._spans(tensor, extra=index)
        room = self.problem.host_bytes - size
        fits = all(self._host_used[first:end].max() <= room for first, end in spans)
        self._hold(self._host_spans.get(tensor, []), size)
        return fits

    def _account_host(self, tensor: int) -> None:
        spans = self._spans(tensor)
        if spans or tensor in self._host_spans:
            size = self.problem.step.tensors[tensor].size
            self._hold(self._host_spans.get(tensor, []), -size)
            self._hold(spans, size)
            self._host_spans[tensor] = spans

    def _hold(self, spans: list[tuple[int, int]], nbytes: int) -> None:
        for first, end in spans:
            add_cyclic(self._host_used, first, np.full(end - first, nbytes, dtype=np.int64))

    def _spans(self, tensor: int, extra: int | None = None) -> list[tuple[int, int]]:
        """Return the ops at which host memory holds the tensor's copies.

        A copy is held until its tensor is back, or until the next drop to host memory, which
        uses it again.
        """
        indices = [i for i in self._intervals_of[tensor] if i == extra or self._is_in(i, HOST)]
        spans = []
        for position, index in enumerate(indices):
            interval = self.problem.intervals[index]
            following = indices[(position + 1) % len(indices)]
            end = interval.needed_by_op
            if self._drops_to_host(following, extra):
                after_op = self.problem.intervals[following].after_op
                end = after_op + 1 + (self.n_ops if position + 1 == len(indices) else 0)
            spans.append((interval.after_op + 1, end))
        return spans

    def _drops_to_host(self, index: int, extra: int | None) -> bool:
        place = self.families[index]
        return not self.needs_write(index, HOST) or extra in place.members[: place.position]
