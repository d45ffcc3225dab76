"""A plan replayed by the real replay and pager in a program of ghosts: storages without content.

Time is counted, not spent. Ops take what the trace says; bytes move at the rates of the plan's
hardware, on one channel each way and tier.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from teraio.executor.counters import Counters
from teraio.executor.memory import new_buffer
from teraio.executor.page import Page
from teraio.executor.pager import Pager
from teraio.executor.replay import Replay
from teraio.executor.schedule import schedule_of
from teraio.executor.stores.base import Extent
from teraio.executor.stores.memory import HostReach
from teraio.executor.stores.opening import tier_bytes
from teraio.planner.plan import HOST, Plan
from teraio.planner.step import Step, StepTensor, Use
from teraio.profiler.errors import StorageError
from teraio.profiler.operators import Operator
from teraio.profiler.opstream import READ, WRITE, Op
from teraio.profiler.storages import StorageTable

CPU = torch.device("cpu")
NS = 1_000_000_000


class Clock:
    """The device's time in ns."""

    def __init__(self) -> None:
        self.now = 0


class GhostStore:
    """Counts bytes."""

    io_path = "ghost"

    def __init__(self, tier: str, capacity: int) -> None:
        self.tier, self.capacity, self.used = tier, capacity, 0
        self._ids = itertools.count()

    def allocate(self, nbytes: int) -> Extent:
        if self.used + nbytes > self.capacity:
            msg = f"{self.tier} is full"
            raise StorageError(msg)
        self.used += nbytes
        return Extent(next(self._ids), nbytes, ())

    def free(self, extent: Extent) -> None:
        self.used -= extent.nbytes

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class GhostTransfer:
    """Over at a time; waiting for it takes the device there."""

    clock: Clock
    begins_ns: int
    ends_ns: int
    nbytes: int

    def span(self) -> tuple[int, int]:
        return self.begins_ns, self.ends_ns

    @property
    def done(self) -> bool:
        return self.ends_ns <= self.clock.now

    def wait(self) -> None:
        self.clock.now = max(self.clock.now, self.ends_ns)

    def promote(self) -> None:
        """What is on a channel keeps its place."""

    def cancel(self) -> bool:
        return False


@dataclass
class GhostMover:
    """Two channels, in order."""

    clock: Clock
    write_bytes_per_s: int
    read_bytes_per_s: int
    writes_until_ns: int = 0
    reads_until_ns: int = 0

    def write(self, *arguments: Any, **options: Any) -> GhostTransfer:
        begin_ns = max(self.clock.now, self.writes_until_ns)
        self.writes_until_ns = begin_ns + arguments[3] * NS // self.write_bytes_per_s
        return GhostTransfer(self.clock, begin_ns, self.writes_until_ns, arguments[3])

    def read(self, *arguments: Any, **options: Any) -> GhostTransfer:
        begin_ns = max(self.clock.now, self.reads_until_ns)
        self.reads_until_ns = begin_ns + arguments[3] * NS // self.read_bytes_per_s
        return GhostTransfer(self.clock, begin_ns, self.reads_until_ns, arguments[3])

    def close(self) -> None:
        """Nothing runs."""


class GhostMemory:
    """Leaves storages as they are."""

    name = "ghost"
    views_while_absent = True

    def release(self, storage: torch.UntypedStorage, reason: str) -> None:
        """Nothing is freed."""

    def buffer_for(self, storage: Any, nbytes: int, device: torch.device) -> Any:
        return new_buffer(1, device) if storage is None else storage

    def attach(self, storage: torch.UntypedStorage, buffer: torch.UntypedStorage) -> None:
        """Nothing has moved."""


class GhostDevice:
    """A device that lags behind the host or not: the pager may not look at its memory."""

    torch_device = CPU
    reach = HostReach()

    def __init__(self, *, runs_ahead: bool) -> None:
        self.runs_ahead = runs_ahead
        self.memory: Any = GhostMemory()

    def now(self) -> None:
        """All is in order."""

    def movers(self, stores: Any, *, timed: bool = False, timeout_s: float = 0) -> Any:
        raise NotImplementedError

    def lend_memory(self, nbytes: int) -> Any:
        raise NotImplementedError

    def enforce(self, budget_bytes: int) -> Any:
        return nullcontext()

    def allocator(self) -> None:
        """Nothing is counted."""

    def give_back_cached(self) -> None:
        """Nothing is cached."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class GhostRun:
    """The steps of a program under a plan: how long each took, and what was not planned in it."""

    step_ns: list[int] = field(default_factory=list)
    unplanned: list[int] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    divergences: list[str] = field(default_factory=list)


class Ghosts:
    """A program whose every step is the one of a trace."""

    def __init__(self, step: Step, plan: Plan, *, runs_ahead: bool) -> None:
        self._step, self._plan = step, plan
        self.run = GhostRun()
        self._clock = Clock()
        self._schedule = schedule_of(plan)
        stores = {
            HOST: GhostStore(HOST, min(plan.budget.host_bytes, tier_bytes(plan, HOST))),
            "ssd": GhostStore("ssd", 1 << 60),
        }
        ssd, link = plan.hardware.ssd, plan.hardware.host_link
        movers = {
            HOST: GhostMover(self._clock, link.to_host_bytes_per_s, link.to_gpu_bytes_per_s),
            "ssd": GhostMover(self._clock, ssd.write_bytes_per_s, ssd.read_bytes_per_s),
        }
        pager: Any = Pager(
            device=GhostDevice(runs_ahead=runs_ahead),
            stores=stores,  # type: ignore[arg-type]
            movers=movers,
            budget_bytes=plan.budget.memory_bytes,
            margin_bytes=plan.budget.memory_bytes - plan.budget.planned_bytes,
            counters=self.run.counters,
        )
        self._table: StorageTable[Page] = StorageTable(pager.new_page)
        pager.every_page = lambda: self._table
        self._replay = Replay(
            schedule=self._schedule,
            pager=pager,
            table=self._table,
            counters=self.run.counters,
            on_divergence=self.run.divergences.append,
            signature=lambda op: op.signature,
        )
        self._live: dict[int, torch.UntypedStorage] = {}
        self._uses: dict[int, list[tuple[int, Use]]] = defaultdict(list)
        self._frees: dict[int, list[int]] = defaultdict(list)
        for number, tensor in enumerate(step.tensors):
            for use in tensor.uses:
                self._uses[use.op].append((number, use))
            if tensor.free_op is not None:
                self._frees[tensor.free_op].append(number)

    def steps(self, count: int) -> GhostRun:
        """Run so many steps."""
        for number in range(count):
            began_ns, moves = self._clock.now, self._moves()
            for index in range(len(self._step.ops)):
                self._run_op(number, index)
            self._pass_on()
            self._replay.end_step(number, len(self._step.ops))
            self.run.step_ns.append(self._clock.now - began_ns)
            self.run.unplanned.append(self._moves() - moves)
        return self.run

    def _moves(self) -> int:
        return self.run.counters.unplanned_fetches + self.run.counters.unplanned_evictions

    def _run_op(self, step: int, index: int) -> None:
        made = {n for n, _ in self._uses[index] if self._step.tensors[n].alloc_op == index}
        arguments = self._placed([u for u in self._uses[index] if u[0] not in made], index, 0)
        results = self._placed(
            [u for u in self._uses[index] if u[0] in made], index, len(arguments)
        )
        op: Op[Page] = Op(Operator(self._step.ops[index].name), step, index)
        op.signature = self._schedule.signatures[index]
        for number, use in arguments:
            op.add(self._page(number), READ * use.reads | WRITE * use.writes)
        op.first_new = len(op.blocks)
        self._table.position = (step, index)
        self._replay.before_op(op)
        for number, _ in results:
            op.add(self._page(number), WRITE)
        self._clock.now += int(self._step.slots[index])
        self._replay.after_op(op)
        del op
        for number in self._frees[index]:
            self._live.pop(number, None)

    def _page(self, number: int) -> Page:
        if number not in self._live:
            self._live[number] = new_buffer(self._step.tensors[number].nbytes, CPU)
        return self._table.block(self._live[number])

    def _placed(self, uses: list[tuple[int, Use]], index: int, base: int) -> list[tuple[int, Use]]:
        """Order uses so that those with a known slot in this op are at it."""
        slots: dict[int, tuple[int, Use]] = {}
        others = []
        for number, use in uses:
            tensor = self._step.tensors[number]
            slot = tensor.slot - base if tensor.first_op == index else -1
            if 0 <= slot < len(uses):
                slots[slot] = (number, use)
            else:
                others.append((number, use))
        return [slots[k] if k in slots else others.pop(0) for k in range(len(uses))]

    def _pass_on(self) -> None:
        """Make what outlives the step what is older than the next one."""
        tensors = self._step.tensors
        heirs: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        for number, tensor in enumerate(tensors):
            if tensor.alloc_op is None and tensor.free_op is not None:
                heirs[_kin(tensor)].append(number)
        for number, tensor in enumerate(tensors):
            if tensor.alloc_op is not None and tensor.free_op is None and number in self._live:
                storage = self._live.pop(number)
                if heirs[_kin(tensor)]:
                    self._live[heirs[_kin(tensor)].pop(0)] = storage


def _kin(tensor: StepTensor) -> tuple[str, int, str]:
    return tensor.name, tensor.nbytes, tensor.kind
