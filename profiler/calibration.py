"""What an op costs under the op stream beyond what a listener can see from inside."""

from __future__ import annotations

from time import perf_counter_ns

import torch

from teraio.profiler.opstream import Op, OpStream
from teraio.profiler.storages import Block, StorageTable
from teraio.profiler.touch import Hold

_OPS = 300
_ROUNDS = 7


class _Seen:
    """A listener that adds up the time the stream spends around ops."""

    quiet: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.ns = 0

    def before_op(self, op: Op[Block]) -> None:
        self.ns += perf_counter_ns() - op.entered_ns

    def after_op(self, op: Op[Block]) -> None:
        self.ns += perf_counter_ns() - op.left_ns

    def touch(self, block: Block, hold: Hold) -> None:
        """Nothing is counted."""

    def end_step(self, step: int, ops: int) -> None:
        """Nothing is counted."""


def unseen_ns() -> int:
    """Return the ns that torch's dispatch to Python adds to each op, measured here and now.

    The cheapest of several rounds, so that a disturbance does not count.
    """
    value = torch.ones(8)
    plain = min(_chain(value) for _ in range(_ROUNDS))
    watched = []
    for _ in range(_ROUNDS):
        seen = _Seen()
        with OpStream(StorageTable(Block), [seen]):
            watched.append(_chain(value) - seen.ns)
    return max(0, (min(watched) - plain) // _OPS)


def _chain(value: torch.Tensor) -> int:
    begun = perf_counter_ns()
    for _ in range(_OPS):
        value.add_(1)
    return perf_counter_ns() - begun
