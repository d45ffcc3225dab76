"""`teraio run` as a function: runs a script under a plan and reports what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from teraio.executor.counters import Counters
from teraio.executor.device import open_device
from teraio.executor.page import Page
from teraio.executor.report import build_report
from teraio.executor.residence import Limits, Residence
from teraio.executor.schedule import schedule_of
from teraio.executor.stores.base import Store
from teraio.executor.stores.opening import StoreOptions, open_stores, room_for
from teraio.executor.verify import Digests
from teraio.planner.plan import Plan
from teraio.profiler.interception import intercepting
from teraio.profiler.modules import ModuleWatch
from teraio.profiler.opstream import OpStream
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.session import warm_up_dispatch


@dataclass(frozen=True)
class RunOptions:
    """How to run: the stores, and the digests of a run without offload to compare.

    With `enforce`, torch's allocator is held to the budget too. A request to a drive that has
    not come back after `io_timeout_s` seconds ends the run with StuckError; 0 is never.
    """

    stores: StoreOptions
    enforce: bool = False
    io_timeout_s: float = 0
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
        self._device = open_device()

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
            memory=self._device.memory.name,
            allocator=self._device.allocator(),
            verified_steps=self.digests.compared,
        )

    def _open(self, stack: ExitStack) -> None:
        device = self._device
        stack.callback(device.close)
        if self.options.enforce:
            stack.enter_context(device.enforce(self.plan.budget.memory_bytes))
        self._stores = open_stores(room_for(self.plan), self.options.stores, device, stack)
        budget = self.plan.budget
        residence = Residence(
            device,
            self._stores,
            Limits(
                budget.memory_bytes,
                budget.memory_bytes - budget.planned_bytes,
                self.options.io_timeout_s,
            ),
            self.counters,
            restore=lambda: self.restore,
            stack=stack,
        )
        stream: OpStream[Page] = OpStream(residence.table, [])
        stream.listeners = (residence.follow(stream, schedule_of(self.plan), self._on_divergence),)
        stream.remembers = True

        def before(optimizer: torch.optim.Optimizer) -> None:
            if self.digests.wanted:
                self.digests.compare(optimizer, stream)

        optimizers = OptimizerWatch(before, lambda _: stream.end_step())
        warm_up_dispatch()
        stack.enter_context(intercepting(stream, optimizers, self._hook_modules))

    def _hook_modules(self) -> None:
        """Hook modules as the recorder does: a model is compiled to other ops without hooks."""
        self._exits.enter_context(ModuleWatch().installed())
