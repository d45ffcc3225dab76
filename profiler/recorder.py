"""Records the op stream: rows of accesses, and what is known of each storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter_ns
from typing import Any

import torch

from teraio.profiler.clock import Clock
from teraio.profiler.modules import ModuleWatch, TensorLabel, optimizer_labels
from teraio.profiler.opstream import READ, WRITE, Op
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.storages import Block, StorageTable, owned_by_torch, size_of
from teraio.profiler.touch import Hold
from teraio.profiler.workspace import WorkspaceMeter

_ACCESS = {READ: "read", WRITE: "write", READ | WRITE: "readwrite"}
_KIND_RANK = ("parameter", "buffer", "optimizer_state", "gradient", "input", "activation", "other")


@dataclass
class Facts:
    """What is known of one storage; born and died are (step, op).

    `made`: an op of the program made it, while others may be older than their first use.
    """

    nbytes: int
    born: tuple[int, int] | None = None
    died: tuple[int, int] | None = None
    kind: str = "other"
    name: str = ""
    pinned: bool = False
    made: bool = False

    def label(self, kind: str, name: str) -> None:
        """Take a kind if it says more than the one known."""
        if _KIND_RANK.index(kind) < _KIND_RANK.index(self.kind):
            self.kind, self.name = kind, name


@dataclass
class OpRow:
    """One op of a step; `accesses` are (storage id, access)."""

    name: str
    phase: str
    module: str
    signature: int
    overhead_ns: int
    accesses: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class StepRecord:
    """One complete step: its ops, their times in ns, and the storages alive when it began."""

    number: int
    ops: list[OpRow]
    starts: list[int]
    durations: list[int]
    alive_at_start: list[int]


class Recorder:
    """A listener that keeps the last `keep` complete steps.

    Holds weak references only, so recording does not change how long anything lives. Of step
    `plain_step`, if there is one, only the length is taken, `plain_ns`: its ops are not told of.
    With `views_read`, making a view counts as reading, as it needs the storage to be there. Without
    `leaves_gaps` each op begins when the one before ends: a device that waits for pages between
    ops would not otherwise.
    """

    def __init__(
        self,
        *,
        table: StorageTable[Block],
        modules: ModuleWatch,
        optimizers: OptimizerWatch,
        clock: Clock,
        new_meter: Callable[[], WorkspaceMeter | None],
        keep: int,
        meter_step: int,
        plain_step: int = -1,
        views_read: bool = False,
        leaves_gaps: bool = True,
        unseen_ns: int = 0,
    ) -> None:
        self.quiet: frozenset[int] = frozenset()
        self._unseen_ns = unseen_ns
        self._plain_step, self._views_read = plain_step, views_read
        self._leaves_gaps = leaves_gaps
        self.plain_ns = 0
        self.facts: dict[int, Facts] = {}
        self.steps: deque[StepRecord] = deque(maxlen=keep)
        self.workspace: dict[int, int] = {}
        self._table, self._modules, self._optimizers = table, modules, optimizers
        self._dead = table.deaths()
        self._clock, self._new_meter, self._meter_step = clock, new_meter, meter_step
        self._meter = new_meter() if meter_step == 0 else None
        self._ops: list[OpRow] = []
        self._marks: list[Any] = []
        self._overhead = 0
        self._alive_at_start: list[int] = []

    def before_op(self, op: Op[Block]) -> None:
        """Note the op and when it starts."""
        if not self._marks:
            self._begin()
            op.entered_ns = perf_counter_ns()
        phase = self._phase()
        row = OpRow(op.operator.name, phase, self._modules.current, op.signature, self._overhead)
        self._ops.append(row)
        if self._meter is not None:
            self._meter.start(op.signature)
        started = perf_counter_ns()
        self._overhead += started - op.entered_ns
        row.overhead_ns = self._overhead
        self._marks.append(self._clock.mark(started))

    def after_op(self, op: Op[Block]) -> None:
        """Note when the op ended and what it touched."""
        self._marks.append(self._clock.mark(op.left_ns))
        if self._meter is not None:
            self._meter.stop(sum(block.nbytes for block in op.blocks[op.first_new :]))
        row = self._ops[-1]
        if op.operator.is_view and not self._views_read:
            for block in op.blocks:
                self._facts(block)  # it may be the first that is seen of a storage
        else:
            self._note_accesses(op, row)
        self._overhead += perf_counter_ns() - op.left_ns

    def touch(self, block: Block, hold: Hold) -> None:
        """A storage that shares its memory must stay where it is."""
        facts = self._facts(block)
        facts.pinned |= hold is Hold.LIFE

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Label gradients while they are sure to exist."""
        began = perf_counter_ns()
        self._label_all(self._modules.labels())
        self._label_all(optimizer_labels(optimizer, self._parameter_names()))
        self._overhead += perf_counter_ns() - began

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Label optimizer states once they exist."""
        self._label_all(optimizer_labels(optimizer, self._parameter_names()))

    def end_step(self, step: int, ops: int) -> None:
        """Keep the finished step and begin the next."""
        self._bury()
        if step == self._plain_step:
            self._marks.append(self._clock.mark(perf_counter_ns()))
            self.plain_ns = self._clock.resolve(self._marks)[-1]
        elif self._ops:
            self.steps.append(self._finished(step))
        self._forget()
        self._alive_at_start = [block.id for block in self._table]
        self.close()
        if step + 1 >= self._meter_step and not self.workspace:
            self._meter = self._new_meter()
        self._begin()

    def close(self) -> None:
        """Stop the workspace meter: torch's profiler must not be running when the process ends."""
        if self._meter is not None:
            self.workspace = self._meter.bytes_by_op()
            self._meter = None

    def _begin(self) -> None:
        self._ops, self._overhead = [], 0
        self._marks = [self._clock.mark(perf_counter_ns())]

    def _finished(self, step: int) -> StepRecord:
        times = self._clock.resolve(self._marks)
        starts, ends = times[1::2], times[2::2]
        durations = [end - start for start, end in zip(starts, ends, strict=True)]
        if self._clock.is_hosts:
            starts = [t - op.overhead_ns for t, op in zip(starts, self._ops, strict=True)]
            starts = without_gaps_of(self._unseen_ns, starts, durations)
        if not self._leaves_gaps:
            starts = [0, *accumulate(durations[:-1])]
        return StepRecord(
            number=step,
            ops=self._ops,
            starts=starts,
            durations=durations,
            alive_at_start=self._alive_at_start,
        )

    def _note_accesses(self, op: Op[Block], row: OpRow) -> None:
        for position, block in enumerate(op.blocks):
            facts = self._facts(block)
            if position >= op.first_new:
                facts.born, facts.made = (op.step, op.index), True
                facts.label("activation" if row.phase in ("forward", "backward") else "other", "")
            elif facts.kind == "other" and row.phase == "forward":
                facts.label("input", "")
            row.accesses.append((block.id, _ACCESS[op.access[position]]))

    def _facts(self, block: Block) -> Facts:
        facts, storage = self.facts.get(block.id), block.storage
        if facts is None:
            foreign = storage is not None and not owned_by_torch(storage)
            born = self._table.position if self._table.position[0] else None
            facts = self.facts[block.id] = Facts(block.nbytes, born=born, pinned=foreign)
        # `out=` and `resize_` may have given it another size.
        facts.nbytes = max(facts.nbytes, block.nbytes if storage is None else size_of(storage))
        return facts

    def _phase(self) -> str:
        if self._optimizers.stepping:
            return "optimizer"
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "forward" if self._modules.running else "other"

    def _parameter_names(self) -> dict[int, str]:
        return {id(t): name for t, kind, name in self._modules.labels() if kind == "parameter"}

    def _label_all(self, labels: Any) -> None:
        label: TensorLabel
        for label in labels:
            tensor, kind, name = label
            if tensor.layout is torch.strided:
                block = self._table.known(tensor.untyped_storage())
                if block is not None:
                    self._facts(block).label(kind, name)

    def _bury(self) -> None:
        while self._dead:
            block, where = self._dead.popleft()
            if block.id in self.facts:
                self.facts[block.id].died = where

    def _forget(self) -> None:
        """Drop what is known of storages that died before the first step still kept."""
        if self.steps:
            first = self.steps[0].number
            gone = [i for i, f in self.facts.items() if f.died is not None and f.died[0] < first]
            for block_id in gone:
                del self.facts[block_id]


def without_gaps_of(each_ns: int, starts: list[int], durations: list[int]) -> list[int]:
    """Return the starts of ops with up to `each_ns` taken out of the gap before each."""
    moved: list[int] = []
    shift, free = 0, 0
    for start, duration in zip(starts, durations, strict=True):
        begin = max(start - shift - each_ns, min(free, start - shift))
        shift = start - begin
        free = begin + duration
        moved.append(begin)
    return moved
