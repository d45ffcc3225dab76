"""What a policy has decided so far, with the memory and the channel time that it leaves.

Positions are the bins of `grid.Grid`, unwrapped: bin b of the next step is b + n_bins.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.bandwidth import Channels, Taken, transfer_ns
from teraio.planner.grid import Grid
from teraio.planner.host_memory import HostMemory
from teraio.planner.memory import Memory
from teraio.planner.plan import HOST, SSD, Action, Offload, Prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.host_memory import Span
    from teraio.planner.problem import Problem


UNUSED: Final = 1 << 62
"""The first used position of a family of which no interval is used."""


@dataclass(slots=True)
class Placement:
    """An interval that is used: the tensor is absent in bins `gone` to `back`."""

    tier: str
    gone: int
    back: int
    write: bool
    out: Taken | None
    into: Taken


class Schedule:
    """The intervals used so far, with the memory and the channel time they leave.

    `slots` are the ns from each op's start to the next one's that channels may use. `first` and
    `end` have for each interval the first bin inside it and the one after the last. By tier,
    `read_ns` and `write_ns` have the ns that each transfer takes, and `first_used` the first
    used position of each family, or `UNUSED`; `tiers` are in the order of preference.
    """

    def __init__(
        self, problem: Problem, grid: Grid | None = None, slots: NDArray[np.int64] | None = None
    ) -> None:
        step = problem.step
        self.problem = problem
        self.tiers = problem.all_tiers
        self.grid = grid or Grid.of(problem)
        self.memory = Memory(
            self.grid.most(step.demand), problem.planned_bytes, self.grid.totals(step.slots)
        )
        free = self.grid.totals(step.slots if slots is None else slots)
        self.channels = Channels(free, problem.hardware)
        self.placed: dict[int, Placement] = {}
        self.places = problem.places
        self.ssd_written_bytes = 0
        self.first, self.end = self.grid.windows(problem)
        self._firsts: list[int] = self.first.tolist()
        self._ends: list[int] = self.end.tolist()
        tensors = [step.tensors[interval.tensor] for interval in problem.intervals]
        self._sizes = [tensor.size for tensor in tensors]
        self._nbytes = [tensor.nbytes for tensor in tensors]
        self._tiers = [problem.tiers(interval.tensor) for interval in problem.intervals]
        self.read_ns = {tier: self._times(tier, to_gpu=True) for tier in self.tiers}
        self.write_ns = {tier: self._times(tier, to_gpu=False) for tier in self.tiers}
        self._positions: dict[tuple[int, str], list[int]] = {}
        self.first_used = {
            tier: np.full(len(problem.intervals), UNUSED, dtype=np.int64) for tier in self.tiers
        }
        self._host = HostMemory(self.n_bins, problem.host_bytes)
        self._intervals_of: dict[int, list[int]] = {}
        for index, interval in enumerate(problem.intervals):
            self._intervals_of.setdefault(interval.tensor, []).append(index)

    @property
    def n_bins(self) -> int:
        """The bins of a step."""
        return self.grid.n_bins

    def tiers_of(self, index: int) -> tuple[str, ...]:
        """Return the tiers that interval `index`'s tensor may go to, in order of preference."""
        return self._tiers[index]

    def span(self, index: int) -> tuple[int, int]:
        """Return the first bin inside interval `index` and the one after the last."""
        return self._firsts[index], self._ends[index]

    def size(self, index: int) -> int:
        """Return the bytes that interval `index` frees."""
        return self._sizes[index]

    def used(self, index: int, tier: str) -> list[int]:
        """Return the used positions, in order, of interval `index`'s family in the tier."""
        return self._positions.setdefault((self.places[index].family, tier), [])

    def needs_write(self, index: int, tier: str) -> bool:
        """Return whether the tier would have no current copy when interval `index` begins."""
        place = self.places[index]
        used = self.used(index, tier)
        return not place.clean and (not used or used[0] >= place.position)

    def may_use(self, index: int, tier: str) -> bool:
        """Return whether host memory, or what may be written to the SSD, has room for a copy."""
        if tier == HOST:
            tensor = self.problem.intervals[index].tensor
            return self._host.fits(tensor, self.size(index), self._spans(tensor, extra=index))
        limit = self.problem.ssd_write_bytes
        if limit is None or not self.needs_write(index, tier) or self._later(index, tier):
            return True
        return self.ssd_written_bytes + self._nbytes[index] <= limit

    def place(self, index: int, tier: str, gone: int, back: int) -> None:
        """Use interval `index`: away from bin `gone` to bin `back`."""
        if index in self.placed:
            self.remove(index)
        first, end = self.span(index)
        write = self.needs_write(index, tier)
        out = None
        if write:
            self._become_drops(index, tier)
            self._count_write(index, tier, 1)
            ns = self.write_ns[tier][index]
            out = self.channels.to_tier(tier).take_early(first, gone, ns)
        into = self.channels.to_gpu(tier).take_late(back + 1, end, self.read_ns[tier][index])
        self.placed[index] = Placement(tier, gone, back, write, out, into)
        insort(self.used(index, tier), self.places[index].position)
        self._note_first_used(index, tier)
        self.memory.add(gone, back + 1, -self.size(index))
        self._account_host(index)

    def remove(self, index: int) -> None:
        """Do not use interval `index` after all; no other may depend on the copy it makes."""
        placement = self.placed.pop(index)
        self.used(index, placement.tier).remove(self.places[index].position)
        self._note_first_used(index, placement.tier)
        if placement.out is not None:
            self._count_write(index, placement.tier, -1)
            self.channels.to_tier(placement.tier).give_back(placement.out)
        self.channels.to_gpu(placement.tier).give_back(placement.into)
        self.memory.add(placement.gone, placement.back + 1, self.size(index))
        self._account_host(index)

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
        n_ops = self.grid.n_ops
        keyed: list[tuple[tuple[int, ...], Action]] = []
        for index, placement in self.placed.items():
            interval = self.problem.intervals[index]
            tensor = self.problem.step.tensors[interval.tensor].id
            gone = self.grid.first_op(placement.gone)
            back = self.grid.first_op(placement.back + 1) - 1
            offload = Offload(
                tensor, placement.tier, interval.after_op, gone % n_ops, placement.write
            )
            needed_by_op = interval.needed_by_op % n_ops
            prefetch = Prefetch(tensor, placement.tier, back % n_ops, needed_by_op)
            keyed.append(((interval.after_op, 0, gone - interval.after_op, tensor), offload))
            keyed.append(((back % n_ops, 1, interval.needed_by_op - back, tensor), prefetch))
        return tuple(action for _, action in sorted(keyed, key=lambda pair: pair[0]))

    def _times(self, tier: str, *, to_gpu: bool) -> list[int]:
        hardware = self.problem.hardware
        known = {n: transfer_ns(hardware, tier, n, to_gpu=to_gpu) for n in set(self._nbytes)}
        return [known[nbytes] for nbytes in self._nbytes]

    def _note_first_used(self, index: int, tier: str) -> None:
        used = self.used(index, tier)
        self.first_used[tier][self.places[index].family] = used[0] if used else UNUSED

    def _later(self, index: int, tier: str) -> list[int]:
        """Return the used intervals that follow `index` in its family, in the same tier."""
        place, used = self.places[index], self.used(index, tier)
        return [place.members[p] for p in used[bisect_right(used, place.position) :]]

    def _become_drops(self, index: int, tier: str) -> None:
        """Let what follows `index` in its family use the copy that `index` will make."""
        for later in self._later(index, tier):
            placement = self.placed[later]
            if placement.out is not None:
                self._count_write(later, tier, -1)
                self.channels.to_tier(tier).give_back(placement.out)
                placement.out, placement.write = None, False
                self.move(later, self._firsts[later], placement.back)

    def _count_write(self, index: int, tier: str, times: int) -> None:
        if tier == SSD:
            self.ssd_written_bytes += times * self._nbytes[index]

    def _account_host(self, index: int) -> None:
        if self.problem.host_bytes:
            tensor = self.problem.intervals[index].tensor
            self._host.hold(tensor, self.size(index), self._spans(tensor))

    def _spans(self, tensor: int, extra: int | None = None) -> list[Span]:
        """Return the bins in which host memory holds the tensor's copies.

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
                end = after_op + 1 + (self.grid.n_ops if position + 1 == len(indices) else 0)
            first = self.grid.holding(interval.after_op + 1)
            spans.append((first, min(self.grid.inside(end), first + self.n_bins)))
        return spans

    def _is_in(self, index: int, tier: str) -> bool:
        return index in self.placed and self.placed[index].tier == tier

    def _drops_to_host(self, index: int, extra: int | None) -> bool:
        place = self.places[index]
        return not self.needs_write(index, HOST) or extra in place.members[: place.position]
