"""A store that stands in for drives a machine does not have: host memory, slowed down.

For experiments only. Every output calls it `emulated`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from teraio.executor.stores.base import PIECE_BYTES, Extent, Piece
from teraio.executor.stores.host import SLAB_BYTES, HostStore
from teraio.planner.units import format_rate

if TYPE_CHECKING:
    from teraio.executor.stores.memory import Reach

_NS: Final = 1_000_000_000


@dataclass(frozen=True)
class EmulatedDrive:
    """What to emulate: bytes per second each way, and ns from a request to its first byte."""

    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_ns: int = 0


class EmulatedStore(HostStore):
    """Host memory that takes as long as a drive would, and more of it where that is needed."""

    tier = "ssd"

    def __init__(
        self,
        drive: EmulatedDrive,
        capacity_bytes: int,
        *,
        piece_bytes: int = PIECE_BYTES,
        checksums: bool = False,
        reach: Reach | None = None,
    ) -> None:
        super().__init__(capacity_bytes, piece_bytes=piece_bytes, checksums=checksums, reach=reach)
        self._drive = drive
        self._growing = threading.Lock()
        self._reads = _Pace(drive.read_bytes_per_s, drive.latency_ns)
        self._writes = _Pace(drive.write_bytes_per_s, drive.latency_ns)

    def allocate(self, nbytes: int) -> Extent:
        """Reserve `nbytes` bytes; raises StorageError where the machine has no more memory."""
        while (extent := self._space.allocate(nbytes)) is None:
            with self._growing:
                self._take(SLAB_BYTES)
                self._space.add(SLAB_BYTES)
        return extent

    @property
    def io_path(self) -> str:
        """`emulated`, with the rates."""
        read, write = self._drive.read_bytes_per_s, self._drive.write_bytes_per_s
        return f"emulated ({format_rate(read)} read, {format_rate(write)} write)"

    def _write(self, piece: Piece, address: int) -> None:
        end_ns = self._writes.end_of(piece.nbytes)
        super()._write(piece, address)
        _sleep_until(end_ns)

    def _read(self, piece: Piece, address: int) -> None:
        end_ns = self._reads.end_of(piece.nbytes)
        super()._read(piece, address)
        _sleep_until(end_ns)


class _Pace:
    """When pieces end that one channel moves one after the other."""

    def __init__(self, bytes_per_s: int, latency_ns: int) -> None:
        self._bytes_per_s, self._latency_ns = bytes_per_s, latency_ns
        self._busy_until_ns = 0
        self._lock = threading.Lock()

    def end_of(self, nbytes: int) -> int:
        """Take the channel for `nbytes`; return when their last byte is there, by the clock."""
        with self._lock:
            begin_ns = max(time.perf_counter_ns(), self._busy_until_ns)
            self._busy_until_ns = begin_ns + nbytes * _NS // self._bytes_per_s
            return self._busy_until_ns + self._latency_ns


def _sleep_until(end_ns: int) -> None:
    left_ns = end_ns - time.perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / _NS)
