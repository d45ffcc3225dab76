"""Paging without a plan: lets a program that needs more memory than there is be profiled."""

from __future__ import annotations

from contextlib import ExitStack

from teraio.executor.counters import Counters
from teraio.executor.device import open_device
from teraio.executor.page import Page
from teraio.executor.residence import Limits, Residence
from teraio.executor.schedule import NO_SCHEDULE
from teraio.executor.stores.opening import Room, StoreOptions, open_stores
from teraio.profiler.opstream import Listener, OpStream
from teraio.profiler.storages import StorageTable


class DemandPaging:
    """Moves away what was used longest ago when something needs room. Use as a context manager.

    `host_bytes` of host memory are filled before the SSD folders. On exit, absent storages are
    brought back if `restore`, and everything that was made in the folders is removed.
    """

    def __init__(self, limits: Limits, stores: StoreOptions, *, host_bytes: int = 0) -> None:
        self.counters = Counters()
        self.io_path: dict[str, str] = {}
        self.restore = True
        self._limits, self._stores, self._host_bytes = limits, stores, host_bytes
        self._exits = ExitStack()

    def __enter__(self) -> DemandPaging:
        """Open the stores; raises StorageError and UsageError as they do."""
        with ExitStack() as stack:
            device = open_device()
            stack.callback(device.close)
            room = Room(host_limit_bytes=self._host_bytes)
            stores = open_stores(room, self._stores, device, stack)
            self.io_path = {tier: store.io_path for tier, store in stores.items()}
            self._residence = Residence(
                device,
                stores,
                self._limits,
                self.counters,
                restore=lambda: self.restore,
                stack=stack,
            )
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        """Settle the storages, close the stores."""
        self._exits.close()

    @property
    def table(self) -> StorageTable[Page]:
        """The storages that are kept within the limits."""
        return self._residence.table

    def follow(self, stream: OpStream[Page]) -> Listener[Page]:
        """Return the listener to put first on an op stream over `table`."""
        return self._residence.follow(stream, NO_SCHEDULE, lambda _: None)
