"""A program's storages, kept within a budget: what runs and profiles have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from teraio.executor.counters import Counters
from teraio.executor.device import Device
from teraio.executor.forks import before_forks
from teraio.executor.page import Page
from teraio.executor.pager import Pager
from teraio.executor.replay import Replay
from teraio.executor.schedule import Schedule
from teraio.executor.stores.base import Store
from teraio.profiler.opstream import OpStream
from teraio.profiler.storages import StorageTable


@dataclass(frozen=True)
class Limits:
    """Bytes of the device that storages may take, and how much of that to leave free.

    A request to a drive that has not come back after `io_timeout_s` seconds ends the program with
    StuckError; 0 is never.
    """

    budget_bytes: int
    margin_bytes: int = 0
    io_timeout_s: float = 0


class Residence:
    """Keeps what is in `table` within the limits, once it follows an op stream over it.

    When `stack` is closed, absent storages are brought back if `restore` says so.
    """

    def __init__(
        self,
        device: Device,
        stores: Mapping[str, Store],
        limits: Limits,
        counters: Counters,
        *,
        restore: Callable[[], bool],
        stack: ExitStack,
    ) -> None:
        movers = device.movers(stores, timeout_s=limits.io_timeout_s)
        for mover in movers.values():
            stack.callback(mover.close)
        self._pager = pager = Pager(
            device=device,
            stores=stores,
            movers=movers,
            budget_bytes=limits.budget_bytes,
            margin_bytes=limits.margin_bytes,
            counters=counters,
        )
        self.table: StorageTable[Page] = StorageTable(pager.new_page)
        pager.every_page = lambda: self.table
        stack.callback(lambda: pager.close(restore=restore()))
        self._counters, self._stack = counters, stack

    def follow(
        self, stream: OpStream[Page], schedule: Schedule, on_divergence: Callable[[str], None]
    ) -> Replay:
        """Return the listener that does so, by a schedule or without one; `stream` calls it."""
        replay = Replay(
            schedule=schedule,
            pager=self._pager,
            table=self.table,
            counters=self._counters,
            on_divergence=on_divergence,
            signature=stream.exact_signature,
        )
        stream.make_room = replay.out_of_memory
        stream.sizeless = self._pager.sizeless

        def before_fork() -> None:
            with stream.lock:
                replay.before_fork()

        self._stack.enter_context(before_forks(before_fork))
        return replay
