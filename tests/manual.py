"""A pager whose transfers happen when a test says so, over stores that are dictionaries."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from teraio.executor.counters import Counters
from teraio.executor.device import CpuDevice
from teraio.executor.memory import SwapMemory, address_of, new_buffer
from teraio.executor.page import Page
from teraio.executor.pager import Pager
from teraio.executor.stores.base import Extent, Piece
from teraio.executor.transfer import Moment, TransferLabel
from teraio.profiler.errors import StorageError
from teraio.profiler.storages import StorageTable

CPU = torch.device("cpu")


class DictStore:
    """A store that keeps bytes in a dictionary, up to a number of bytes."""

    io_path = "dictionary"

    def __init__(self, tier: str, capacity: int) -> None:
        self.tier, self.capacity = tier, capacity
        self.kept: dict[int, bytes | None] = {}
        self.sizes: dict[int, int] = {}
        self._ids = itertools.count()

    def allocate(self, nbytes: int) -> Extent:
        if sum(self.sizes.values()) + nbytes > self.capacity:
            msg = f"{self.tier} is full"
            raise StorageError(msg)
        extent = Extent(next(self._ids), nbytes, ())
        self.kept[extent.id], self.sizes[extent.id] = None, nbytes
        return extent

    def free(self, extent: Extent) -> None:
        if extent.id not in self.kept:
            msg = "freed twice"
            raise StorageError(msg)
        del self.kept[extent.id], self.sizes[extent.id]

    def pieces(self, extent: Extent) -> Sequence[Piece]:
        return ()

    def describe(self, piece: Piece) -> str:
        raise NotImplementedError

    def write_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        raise NotImplementedError

    read_piece = write_piece

    def close(self) -> None:
        """Nothing is open."""


class ManualTransfer:
    """Moves its bytes when it is told to, or waited for; begun, it cannot be taken back."""

    def __init__(self, move: Callable[[], None], nbytes: int) -> None:
        self._move, self.nbytes = move, nbytes
        self.begun = self.done = False
        self.error: StorageError | None = None

    def complete(self) -> None:
        if not self.done:
            self._move()
            self.done = True

    def fail(self) -> None:
        if not self.done:
            self.error = StorageError("the drive is gone")
            self.done = True

    def wait(self) -> None:
        self.complete()
        if self.error is not None:
            raise self.error

    def cancel(self) -> bool:
        if self.begun or self.done:
            return False
        self.error, self.done = StorageError("cancelled"), True
        return True

    def promote(self) -> None:
        """All are equally urgent."""

    def span(self) -> None:
        """It takes no time."""


class ManualEngine:
    """Transfers that happen when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[ManualTransfer] = []

    def write(
        self,
        store: Any,
        extent: Extent,
        address: int,
        nbytes: int,
        label: TransferLabel,
        *,
        after: Moment | None = None,
    ) -> ManualTransfer:
        assert nbytes == extent.nbytes

        def move() -> None:
            store.kept[extent.id] = ctypes.string_at(address, nbytes)

        store.kept[extent.id] = None  # from now on what was there is lost
        return self._add(ManualTransfer(move, nbytes))

    def read(
        self,
        store: Any,
        extent: Extent,
        address: int,
        nbytes: int,
        label: TransferLabel,
        *,
        urgent: bool = False,
        after: Moment | None = None,
    ) -> ManualTransfer:
        assert nbytes == extent.nbytes
        assert store.kept[extent.id] is not None

        def move() -> None:
            ctypes.memmove(address, store.kept[extent.id], nbytes)

        return self._add(ManualTransfer(move, nbytes))

    def close(self) -> None:
        """Nothing runs by itself."""

    def _add(self, transfer: ManualTransfer) -> ManualTransfer:
        self.under_way = [t for t in self.under_way if not t.done]
        self.under_way.append(transfer)
        return transfer


def make_pager(
    engine: Any,
    budget: int = 1 << 30,
    room: int = 1 << 30,
    tiers: Sequence[str] = ("ssd", "host"),
) -> tuple[Pager, StorageTable[Page]]:
    device = CpuDevice(CPU)
    device.memory = SwapMemory()
    pager = Pager(
        device=device,
        stores={tier: DictStore(tier, room if tier == "ssd" else room // 4) for tier in tiers},
        movers=dict.fromkeys(tiers, engine),
        budget_bytes=budget,
        counters=Counters(),
    )
    table = StorageTable(pager.new_page)
    pager.every_page = lambda: table
    return pager, table


def filled(nbytes: int, value: int) -> torch.UntypedStorage:
    storage = new_buffer(nbytes, CPU)
    ctypes.memset(address_of(storage), value, nbytes)
    return storage


def content(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(address_of(storage), storage.nbytes())
