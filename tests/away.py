"""A running program whose storages are all away whenever no op is running: the hardest plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from teraio.executor.counters import Counters
from teraio.executor.device import CpuDevice
from teraio.executor.engine import TransferEngine
from teraio.executor.forks import before_forks
from teraio.executor.memory import memory_for
from teraio.executor.page import Page
from teraio.executor.pager import Pager
from teraio.executor.replay import Replay
from teraio.executor.schedule import NO_SCHEDULE
from teraio.executor.states import State
from teraio.executor.stores.host import HostStore
from teraio.planner.plan import (
    Action,
    Budget,
    Hardware,
    HostLink,
    Plan,
    PlannedTensor,
    Policy,
    Prediction,
    Program,
    Ssd,
    TraceRef,
    Traffic,
)
from teraio.profiler.compiled import compiled_regions
from teraio.profiler.opstream import Op, OpStream
from teraio.profiler.storages import StorageTable
from teraio.profiler.threads import bystanders
from teraio.profiler.touch import Hold, touch_points

ROOM = 8 << 20
NOTHING = Traffic(0, 0, 0)
NO_PROGRAM = Program((), (), (), (), ())


def plan_of(
    program: Program = NO_PROGRAM,
    tensors: tuple[PlannedTensor, ...] = (),
    actions: tuple[Action, ...] = (),
    memory_bytes: int = 1 << 40,
) -> Plan:
    """A plan for a program in which each op takes no time."""
    return Plan(
        TraceRef("0" * 64, "f" * 64, 2, len(program.name), program),
        Hardware(Ssd(10**9, 10**9, 0), HostLink(10**9, 10**9), {}),
        Budget(memory_bytes, ROOM, 0.0),
        Policy("by hand", 0.0),
        Prediction(0, 0, 0, 0, memory_bytes, NOTHING, NOTHING),
        tensors,
        actions,
    )


class Away:
    """The listener: a replay without a plan, after each op of which everything leaves."""

    quiet: frozenset[int] = frozenset()

    def __init__(self, replay: Replay, pager: Pager, table: StorageTable[Page]) -> None:
        self._replay, self.pager, self.table = replay, pager, table
        self.before_op = replay.before_op
        self.end_step = replay.end_step
        self.touched: list[Hold] = []
        self.names: list[str] = []

    def after_op(self, op: Op[Page]) -> None:
        self.names.append(op.operator.name)
        self._replay.after_op(op)
        self.send()

    def touch(self, page: Page, hold: Hold) -> None:
        self.touched.append(hold)
        self._replay.touch(page, hold)

    def send(self) -> None:
        """Move away whatever may move."""
        for page in self.table:
            if self.pager.can_move(page):
                self.pager.offload(page, "host")
        for page in self.table:
            if page.transfer is not None:
                page.transfer.wait()
        self.pager.poll()

    def page(self, tensor: torch.Tensor) -> Page:
        page = self.table.known(tensor.untyped_storage())
        assert page is not None
        return page

    def is_away(self, tensor: torch.Tensor) -> bool:
        return self.page(tensor).state is State.ABSENT


@contextmanager
def everything_away() -> Iterator[Away]:
    """Run what is inside with nothing on the device between ops; all is back afterwards."""
    with ExitStack() as stack:
        store = HostStore(ROOM)
        stack.callback(store.close)
        engine = TransferEngine(readers=1, writers=1)
        stack.callback(engine.close)
        counters = Counters()
        device = CpuDevice(torch.device("cpu"))
        device.memory = memory_for(device.torch_device)
        pager = Pager(
            device=device,
            stores={"host": store},
            movers={"host": engine},
            budget_bytes=1 << 40,
            counters=counters,
        )
        table = StorageTable(pager.new_page)
        pager.every_page = lambda: table
        stack.callback(lambda: pager.close(restore=True))
        replay = Replay(
            schedule=NO_SCHEDULE,
            pager=pager,
            table=table,
            counters=counters,
            on_divergence=lambda _: None,
            signature=lambda op: op.signature,
        )
        away = Away(replay, pager, table)
        stream: OpStream[Page] = OpStream(table, [away])
        for part in (
            touch_points(stream),
            bystanders(stream),
            stream.interruptions.installed(),
            compiled_regions(),
            before_forks(replay.before_fork),
            stream,
        ):
            stack.enter_context(part)
        yield away
