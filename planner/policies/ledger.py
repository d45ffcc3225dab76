"""The books of a policy that reserves channel time for one interval after another.

Those of the policies that rank all intervals anew in each round: what every interval would get
is looked up for all of them at once. Positions are unwrapped: op k of the next step is k + n_ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from teraio.planner.bandwidth import Channels, add_cyclic, transfer_ns
from teraio.planner.memory import Memory
from teraio.planner.plan import HOST, SSD
from teraio.planner.tiers import Chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.problem import Problem

    Indices = NDArray[np.int64]

ROUNDS: Final = 1000
"""Rounds that choosing every interval takes at most, as in TERAIO's own `algo_speedup`: a step
with more intervals than that has several chosen in each round before all are ranked again."""


class Window(NamedTuple):
    """A tensor's absence: it is away at ops `gone` to `start` - 1, in `tier`.

    An interval has no channel time for a move if `start` is not larger than `gone`.
    """

    tier: str
    gone: int
    start: int


class Ledger:
    """The intervals as columns, and the memory and channel time that those placed leave.

    `allowed` tells for each tier which intervals it may serve; a policy may rule out more.
    """

    def __init__(self, problem: Problem) -> None:
        step, intervals = problem.step, problem.intervals
        self.problem = problem
        self.n_ops = len(step.ops)
        self.batch = max(1, len(intervals) // ROUNDS)
        self.memory = Memory(step.demand, problem.planned_bytes, step.slots)
        self.channels = Channels(step.slots)
        self.placed: dict[int, Window] = {}
        tensors = [step.tensors[interval.tensor] for interval in intervals]
        self.first = np.array([i.after_op + 1 for i in intervals], dtype=np.int64)
        self.end = np.array([i.needed_by_op for i in intervals], dtype=np.int64)
        self.size = np.array([tensor.size for tensor in tensors], dtype=np.int64)
        self.nbytes = np.array([tensor.nbytes for tensor in tensors], dtype=np.int64)
        self.out_ns, self.in_ns = (
            {
                tier: np.array(
                    [transfer_ns(problem.hardware, tier, t.nbytes, to_gpu=to_gpu) for t in tensors],
                    dtype=np.int64,
                )
                for tier in (SSD, HOST)
            }
            for to_gpu in (False, True)
        )
        tiers = {i.tensor: problem.tiers(i.tensor) for i in intervals}
        self.allowed = {
            tier: np.array([tier in tiers[i.tensor] for i in intervals], dtype=bool)
            for tier in (SSD, HOST)
        }
        ns = np.array([max(op.duration_ns, 1) for op in step.ops], dtype=np.int64)
        self._op_ns = np.concatenate([ns, ns])
        self._host_used = np.zeros(2 * self.n_ops, dtype=np.int64)

    def pressure(self) -> Indices:
        """Return the time, in ns, of the ops over the budget before each position."""
        over = np.where(self.memory.over > 0, self._op_ns, 0)
        return np.concatenate([[0], np.cumsum(over)])

    def windows(self, rows: Indices, tier: str) -> tuple[Indices, Indices]:
        """Return `gone` and `start` of each interval in `rows` in the channel time that is left.

        The offload is done as early, and the prefetch starts as late, as it can.
        """
        to_tier, to_gpu = self.channels.to_tier(tier), self.channels.to_gpu(tier)
        gone = to_tier.finishes(self.first[rows], self.out_ns[tier][rows]) + 1
        start = to_gpu.starts(self.end[rows], self.in_ns[tier][rows])
        never = (gone > self.end[rows]) | (start < self.first[rows]) | ~self.allowed[tier][rows]
        return np.where(never, self.end[rows], gone), np.where(never, self.first[rows], start)

    def window(self, row: int, tier: str) -> Window:
        """Return what `windows` says of one interval, which takes less time."""
        first, end = int(self.first[row]), int(self.end[row])
        to_tier, to_gpu = self.channels.to_tier(tier), self.channels.to_gpu(tier)
        done = to_tier.finish(first, end, int(self.out_ns[tier][row]))
        start = to_gpu.start(first, end, int(self.in_ns[tier][row]))
        if done is None or start is None or not self.allowed[tier][row]:
            return Window(tier, end, first)
        return Window(tier, done + 1, start)

    def waits(self, rows: Indices, tier: str, n_ops: int) -> NDArray[np.bool_]:
        """Return whether an offload of each interval could not begin for `n_ops` ops."""
        begin = self.channels.to_tier(tier).finishes(self.first[rows], np.array(1))
        late: NDArray[np.bool_] = begin - self.first[rows] >= n_ops
        return late

    def wait(self, row: int, tier: str, n_ops: int) -> bool:
        """Return what `waits` says of one interval."""
        first = int(self.first[row])
        return self.channels.to_tier(tier).free_ns(first, first + n_ops) == 0

    def host_fits(self, row: int) -> bool:
        """Return whether host memory has room for a copy over the whole interval."""
        used = self._host_used[self.first[row] : self.end[row]]
        return int(used.max()) + int(self.size[row]) <= self.problem.host_bytes

    def place(self, row: int, window: Window) -> None:
        """Use an interval, and take the channel time that it needs."""
        first, end = int(self.first[row]), int(self.end[row])
        out_ns, in_ns = int(self.out_ns[window.tier][row]), int(self.in_ns[window.tier][row])
        self.channels.to_tier(window.tier).take_early(first, window.gone, out_ns)
        self.channels.to_gpu(window.tier).take_late(window.start, end, in_ns)
        self.force(row, window)

    def force(self, row: int, window: Window) -> None:
        """Use an interval whatever the channels have left."""
        first, end, size = int(self.first[row]), int(self.end[row]), int(self.size[row])
        self.memory.add(window.gone, window.start, -size)
        if window.tier == HOST:
            add_cyclic(self._host_used, first, np.full(end - first, size, dtype=np.int64))
        self.placed[row] = window

    def prefetch_earlier(self) -> None:
        """Start prefetches earlier where memory allows, in the order in which they start.

        None starts before the one before it, nor before its own tensor is gone.
        """
        order = sorted((w.start % self.n_ops, row) for row, w in self.placed.items())
        before = -self.n_ops
        for start, row in order:
            window, size = self.placed[row], int(self.size[row])
            turn = window.start - start
            first = max(window.gone + 1, before + turn)
            earlier = self.memory.room_before(first, window.start, size)
            if earlier < window.start:
                self.memory.add(earlier, window.start, size)
                self.placed[row] = window._replace(start=earlier)
            before = min(earlier, window.start) - turn

    def chosen(self) -> list[Chosen]:
        """Return the intervals used, in the order in which they were placed."""
        return [Chosen(row, w.tier, w.start - 1) for row, w in self.placed.items()]
