"""Offloading as a fluid: any part of a tensor may move, at any time its interval allows.

Every plan, seen at the cuts, is a solution of the program made here, and of a steady run of it
so is the average over many steps; so no plan stalls less than the least stall found. At a cut,
what counts as away is the part that has been written and not yet read back, which is no less
than what a plan has absent. Between two cuts, no channel moves more than its rate allows in the
ideal time and the stall there. What moves to and from the SSD passes the host link too.
Latencies are left out. A copy that several intervals share is written in any of them, but as
each write belongs to an offload, what is written in an interval is read back in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from teraio.planner.draft import Draft
from teraio.planner.plan import HOST, SSD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.cuts import Cuts
    from teraio.planner.lots import Lot
    from teraio.planner.problem import Problem

_INF = float("inf")
_UNITS = 100.0
"""Bytes and ns are scaled so that the largest excess and the period become this."""


class Member(NamedTuple):
    """One interval of a lot in one tier: variables with what they hold.

    `away` are the bytes away at the tight cuts `positions`, `reads` and `writes` those that are
    moved in `read_windows` and `write_windows`. A window is named by the position of the cut
    that it follows. `absent` are the numbers of whole tensors away, if the program counts them.
    """

    positions: NDArray[np.int64]
    away: NDArray[np.int64]
    read_windows: NDArray[np.int64]
    reads: NDArray[np.int64]
    write_windows: NDArray[np.int64]
    writes: NDArray[np.int64]
    absent: NDArray[np.int64]


class Moved(NamedTuple):
    """A lot in one tier, its intervals in order."""

    tier: str
    members: tuple[Member, ...]


class Fluid:
    """The program; `draft` may be added to. Its objective is the stall in units of `unit_ns`.

    With `whole`, memory is only relieved by whole tensors, of lots that are of one size each.
    """

    def __init__(
        self, problem: Problem, cuts: Cuts, movable: Sequence[Lot], *, whole: bool = False
    ) -> None:
        self.draft = Draft()
        self.unit_bytes = float(cuts.excess.max()) / _UNITS
        self.unit_ns = problem.step.period_ns / _UNITS
        self._problem = problem
        self._whole = whole
        self.lots = movable
        self.cuts = cuts
        self._n = len(cuts.events)
        tight = cuts.excess > 0
        self.stalls = self.draft.columns(self._n, _INF, cost=1.0)
        self._memory = self._at(tight, self.draft.rows(cuts.excess[tight] / self.unit_bytes, _INF))
        self._channels: dict[tuple[str, bool], NDArray[np.int64]] = {}
        tiers = {lot.tiers for lot in movable}
        self._one_tier = not any(len(several) > 1 for several in tiers) and len(tiers) <= 1
        self._host_is_ample = problem.host_bytes >= sum(lot.size for lot in movable)
        self._host = None
        if not self._host_is_ample and any(HOST in several for several in tiers):
            room = np.full(int(tight.sum()), problem.host_bytes / self.unit_bytes)
            self._host = self._at(tight, self.draft.rows(-_INF, room))
        self._written = None
        if problem.ssd_write_bytes is not None:
            limit = problem.ssd_write_bytes / self.unit_bytes
            self._written = int(self.draft.rows(-_INF, limit)[0])
        self.moved = [self._add(lot) for lot in movable]

    def waits(self, values: NDArray[np.float64]) -> list[tuple[int, int]]:
        """Return the stalls, (op, ns), of a solution, each spread over the ops of its window."""
        n_ops = len(self._problem.step.ops)
        ops = (self.cuts.events // 2).tolist()
        found = []
        for k, stall in enumerate((values[self.stalls] * self.unit_ns).tolist()):
            first, turn = ops[k] + 1, n_ops if k + 1 == len(ops) else 0
            last = max(first, ops[(k + 1) % len(ops)] + turn)
            ns = int(stall / (last + 1 - first))
            found += [(op % n_ops, ns) for op in range(first, last + 1) if ns > 0]
        return found

    def _at(self, tight: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        at = np.full(self._n, -1)
        at[tight] = rows
        return at

    def tiers(self, lot: Lot) -> tuple[str, ...]:
        """Return the tiers that the program tells apart for a lot.

        Where host memory has room for everything, only the link that all traffic passes limits
        those that may use it.
        """
        ample = self._host_is_ample and self._written is None and HOST in lot.tiers
        return (HOST,) if ample else lot.tiers

    def _add(self, lot: Lot) -> tuple[Moved, ...]:
        moved = tuple(self._in_tier(lot, tier) for tier in self.tiers(lot))
        if len(moved) > 1:
            away = [np.concatenate([m.away for m in where.members]) for where in moved]
            rows = self.draft.rows(-_INF, np.full(len(away[0]), lot.size / self.unit_bytes))
            for columns in away:
                self.draft.put(rows, columns, 1.0)
        return moved

    def _in_tier(self, lot: Lot, tier: str) -> Moved:
        members = tuple(self._member(lot, tier, *span) for span in lot.spans)
        if lot.clean or len(members) > 1:
            for member in members:
                self._keep(member)
        else:
            self._balance(members[0])
        if not lot.clean and len(members) > 1:
            self._share(lot, members)
        return Moved(tier, members)

    def _member(self, lot: Lot, tier: str, first: int, end: int) -> Member:
        tight = self.cuts.tight
        positions = tight[np.searchsorted(tight, first) : np.searchsorted(tight, end)]
        away = self.draft.columns(len(positions), lot.size / self.unit_bytes)
        absent = self._relieve(lot, positions, away)
        if tier == HOST and self._host is not None:
            self.draft.put(self._host[positions % self._n], away, 1.0)
        copies = not lot.clean and len(lot.spans) > 1
        reads = np.arange(first - 1 if copies else positions[0], end)
        writes = np.arange(first - 1, positions[-1] if len(positions) else end)
        return Member(
            positions,
            away,
            reads,
            self._flow(lot, tier, reads, to_gpu=True),
            writes[:0] if lot.clean else writes,
            self._flow(lot, tier, writes[:0] if lot.clean else writes, to_gpu=False),
            absent,
        )

    def _relieve(
        self, lot: Lot, positions: NDArray[np.int64], away: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Count what is away as memory that is free; return the numbers of whole tensors."""
        rows = self._memory[positions % self._n]
        if not self._whole:
            self.draft.put(rows, away, 1.0)
            return away[:0]
        copies = len(lot.copies)
        size = lot.size / copies / self.unit_bytes
        absent = self.draft.columns(len(positions), copies, whole=True)
        self.draft.put(rows, absent, size)
        rows = self.draft.rows(-_INF, np.zeros(len(positions)))
        self.draft.put(rows, absent, size)
        self.draft.put(rows, away, -1.0)
        return absent

    def _flow(
        self, lot: Lot, tier: str, windows: NDArray[np.int64], *, to_gpu: bool
    ) -> NDArray[np.int64]:
        """Return variables for bytes that move in `windows`; the channels' rows count them."""
        columns = self.draft.columns(len(windows), lot.size / self.unit_bytes)
        at = windows % self._n
        loads = [(tier, self._rate(tier, to_gpu=to_gpu))]
        if tier == SSD and not self._one_tier:
            loads.append((HOST, self._rate(HOST, to_gpu=to_gpu)))
        for channel, rate in loads:
            ns = lot.filled * self.unit_bytes * 10**9 / rate
            self.draft.put(self._channel(channel, to_gpu=to_gpu)[at], columns, ns / self.unit_ns)
        if tier == SSD and not to_gpu and self._written is not None:
            self.draft.put(self._written, columns, lot.filled)
        return columns

    def _channel(self, channel: str, *, to_gpu: bool) -> NDArray[np.int64]:
        key = (channel, to_gpu)
        if key not in self._channels:
            rows = self.draft.rows(-_INF, self.cuts.window_ns / self.unit_ns)
            self.draft.put(rows, self.stalls, -1.0)
            self._channels[key] = rows
        return self._channels[key]

    def _rate(self, tier: str, *, to_gpu: bool) -> int:
        ssd, link = self._problem.hardware.ssd, self._problem.hardware.host_link
        through = link.to_gpu_bytes_per_s if to_gpu else link.to_host_bytes_per_s
        if tier == HOST:
            return through
        return min(through, ssd.read_bytes_per_s if to_gpu else ssd.write_bytes_per_s)

    def _keep(self, member: Member) -> None:
        """What is away at a cut is still away at the next one, or read in between."""
        rows = self.draft.rows(-_INF, np.zeros(len(member.away)))
        self.draft.put(rows, member.away, 1.0)
        self.draft.put(rows[:-1], member.away[1:], -1.0)
        last = _before(member.positions, member.read_windows)
        self.draft.put(rows[last[last >= 0]], member.reads[last >= 0], -1.0)

    def _balance(self, member: Member) -> None:
        """What is away at a cut is what was at the one before, and written, and not read."""
        rows = self.draft.rows(np.zeros(len(member.away) + 1), 0.0)
        self.draft.put(rows[:-1], member.away, 1.0)
        self.draft.put(rows[1:], member.away, -1.0)
        written = _before(member.positions, member.write_windows) + 1
        self.draft.put(rows[written], member.writes, -1.0)
        read = _before(member.positions, member.read_windows) + 1
        self.draft.put(rows[read], member.reads, 1.0)

    def _share(self, lot: Lot, members: Sequence[Member]) -> None:
        """Nothing is away that has not been written, and what is written is read back."""
        positions = np.concatenate([member.positions for member in members])
        away = np.concatenate([member.away for member in members])
        copied = self.draft.columns(len(positions), lot.size / self.unit_bytes)
        rows = self.draft.rows(-_INF, np.zeros(len(positions)))
        self.draft.put(rows, copied, 1.0)
        self.draft.put(rows[1:], copied[:-1], -1.0)
        for member in members:
            self.draft.put(rows[_before(positions, member.write_windows) + 1], member.writes, -1.0)
            row = self.draft.rows(-_INF, 0.0)
            self.draft.put(row, member.writes, 1.0)
            self.draft.put(row, member.reads, -1.0)
        rows = self.draft.rows(-_INF, np.zeros(len(positions)))
        self.draft.put(rows, away, 1.0)
        self.draft.put(rows, copied, -1.0)


def variables(cuts: Cuts, movable: Sequence[Lot], problem: Problem) -> int:
    """Return about how many variables the program has."""
    inside = np.cumsum(np.tile(cuts.excess > 0, 4)).tolist()
    host_is_ample = problem.host_bytes >= sum(lot.size for lot in movable)
    count = len(cuts.events)
    for lot in movable:
        tight = sum(inside[end] - inside[first] for first, end in lot.spans)
        reads = sum(end - first for first, end in lot.spans)
        writes = 0 if lot.clean else reads
        copied = 0 if len(lot.spans) == 1 else tight
        tiers = 1 if host_is_ample else len(lot.tiers)
        count += tiers * (tight + reads + writes + copied)
    return count


def _before(positions: NDArray[np.int64], windows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of the positions each window comes after; -1 for before the first."""
    return np.searchsorted(positions, windows, side="right") - 1
