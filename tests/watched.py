"""What the op stream shows of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from teraio.profiler.opstream import Op, OpStream
from teraio.profiler.storages import Block, StorageTable
from teraio.profiler.touch import Hold


@dataclass
class Seen:
    """One op, with the ids and sizes of its storages."""

    name: str
    step: int
    index: int
    signature: int
    is_view: bool
    blocks: list[int]
    access: list[int]
    first_new: int
    nbytes: list[int]


@dataclass
class Watcher:
    """A listener that keeps what it is told."""

    seen: list[Seen] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    touched: list[tuple[int, Hold]] = field(default_factory=list)
    quiet: frozenset[int] = frozenset()

    def before_op(self, op: Op[Block]) -> None:
        self.begun.append(op.operator.name)

    def after_op(self, op: Op[Block]) -> None:
        self.seen.append(
            Seen(
                op.operator.name, op.step, op.index, op.signature, op.operator.is_view,
                [block.id for block in op.blocks], list(op.access), op.first_new,
                [block.nbytes for block in op.blocks],
            )
        )  # fmt: skip

    def touch(self, block: Block, hold: Hold) -> None:
        self.touched.append((block.id, hold))

    def end_step(self, step: int, ops: int) -> None:
        self.steps.append(step)

    @property
    def names(self) -> list[str]:
        return [seen.name for seen in self.seen]


def watch() -> tuple[OpStream[Block], Watcher]:
    """Return an op stream, not entered, and what watches it."""
    watcher = Watcher()
    return OpStream(StorageTable(Block), [watcher]), watcher


def ops_of(function: Callable[[], Any]) -> list[Seen]:
    """Call a function under an op stream and return its ops."""
    stream, watcher = watch()
    with stream:
        function()
    return watcher.seen
