"""`teraio run` as a function: runs a script under a plan and reports what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from teraio.executor.counters import Counters
from teraio.executor.engine import TransferEngine
from teraio.executor.forks import before_forks
from teraio.executor.memory import memory_for
from teraio.executor.page import Page
from teraio.executor.pager import Pager
from teraio.executor.replay import Replay
from teraio.executor.report import build_report
from teraio.executor.schedule import schedule_of
from teraio.executor.stores.base import Store
from teraio.executor.stores.host import HostStore
from teraio.executor.stores.posix import ALIGNMENT, PosixStore
from teraio.executor.stores.space import round_up
from teraio.executor.verify import Digests
from teraio.planner.plan import HOST, SSD, Offload, Plan
from teraio.profiler.errors import UsageError
from teraio.profiler.interception import intercepting
from teraio.profiler.modules import ModuleWatch
from teraio.profiler.opstream import OpStream
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.session import warm_up_dispatch
from teraio.profiler.storages import StorageTable, tracked_device


@dataclass(frozen=True)
class RunOptions:
    """How to run: `folders` on the SSDs, and the digests of a run without offload to compare."""

    folders: Sequence[Path]
    rank: int = 0
    checksums: bool = False
    expected: Sequence[str] = ()


class Run:
    """A plan being carried out in this process. Use as a context manager.

    `report()` may be asked for at any time. On exit, absent storages are brought back if
    `restore`, and everything that was made in the SSD folders is removed.
    """

    def __init__(
        self, plan: Plan, options: RunOptions, on_divergence: Callable[[str], None]
    ) -> None:
        self.plan, self.options = plan, options
        self.counters = Counters()
        self.restore = True
        self.digests = Digests(options.expected)
        self._on_divergence = on_divergence
        self._exits = ExitStack()
        self._stores: dict[str, Store] = {}
        self._device = tracked_device()
        self._memory = memory_for(self._device)

    def __enter__(self) -> Run:
        """Open the stores and start to listen."""
        with ExitStack() as stack:
            self._open(stack)
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop listening, settle the storages, close the stores."""
        self._exits.close()

    def report(self) -> dict[str, Any]:
        """Return the run report so far."""
        return build_report(
            self.plan,
            self.counters,
            io_path={tier: store.io_path for tier, store in self._stores.items()},
            memory=self._memory.name,
            verified_steps=self.digests.compared,
        )

    def _open(self, stack: ExitStack) -> None:
        require_cpu(self._device)
        self._stores = open_stores(self.plan, self.options, stack)
        engine = TransferEngine()
        stack.callback(engine.close)
        pager = Pager(
            memory=self._memory,
            stores=self._stores,
            engine=engine,
            device=self._device,
            budget_bytes=self.plan.budget.memory_bytes,
            counters=self.counters,
        )
        table = StorageTable(pager.new_page)
        pager.every_page = lambda: table
        stack.callback(lambda: pager.close(restore=self.restore))
        replay = Replay(
            plan=self.plan,
            schedule=schedule_of(self.plan),
            pager=pager,
            table=table,
            counters=self.counters,
            on_divergence=self._on_divergence,
        )
        stream: OpStream[Page] = OpStream(table, [replay])

        def before(optimizer: torch.optim.Optimizer) -> None:
            if self.digests.wanted:
                self.digests.compare(optimizer, stream)

        def before_fork() -> None:
            with stream.lock:
                replay.before_fork()

        optimizers = OptimizerWatch(before, lambda _: stream.end_step())
        warm_up_dispatch()
        stack.enter_context(before_forks(before_fork))
        stack.enter_context(intercepting(stream, optimizers, self._hook_modules))

    def _hook_modules(self) -> None:
        """Hook modules as the recorder does: a model is compiled to other ops without hooks."""
        self._exits.enter_context(ModuleWatch().installed())


def require_cpu(device: torch.device) -> None:
    """Raise UsageError for a device whose memory the stores cannot reach yet."""
    if device.type != "cpu":
        msg = f"`teraio run` cannot move memory of a `{device.type}` device yet"
        raise UsageError(msg, hint="hide it, as with `CUDA_VISIBLE_DEVICES=`, to train on the CPU")


def open_stores(plan: Plan, options: RunOptions, stack: ExitStack) -> dict[str, Store]:
    """Open the stores a plan may use, large enough for it; they close with `stack`.

    Raises StorageError with the needed and the free bytes if a folder cannot hold the plan.
    """
    stores: dict[str, Store] = {}
    if plan.budget.host_bytes:
        stores[HOST] = HostStore(plan.budget.host_bytes, checksums=options.checksums)
        stack.callback(stores[HOST].close)
    if options.folders:
        stores[SSD] = PosixStore(
            options.folders, tier_bytes(plan, SSD), rank=options.rank, checksums=options.checksums
        )
        stack.callback(stores[SSD].close)
    # The ssd comes first: it is what evictions fall back to.
    return dict(sorted(stores.items(), reverse=True))


def tier_bytes(plan: Plan, tier: str) -> int:
    """Return the bytes a tier must hold if every tensor the plan sends there is there at once."""
    moved = {a.tensor for a in plan.actions if isinstance(a, Offload) and a.to == tier}
    return sum(round_up(t.nbytes, ALIGNMENT) for t in plan.tensors if t.id in moved)
