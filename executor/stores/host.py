"""The host-memory store: slabs of ordinary memory, never beyond a hard cap."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from teraio.executor.stores.base import PIECE_BYTES, Extent, Piece
from teraio.executor.stores.memory import address_of
from teraio.executor.stores.pieced import PiecedStore
from teraio.executor.stores.space import Space, round_up
from teraio.profiler.errors import StorageError
from teraio.profiler.trace import GRANULE

if TYPE_CHECKING:
    from teraio.executor.stores.memory import Reach

SLAB_BYTES: Final = 256 << 20
"""Bytes of one slab. Pinning one huge region at once fails on some drivers (DeepSpeed issue
7150); slabs of this size are also large enough for transparent huge pages."""


class HostStore(PiecedStore):
    """Offloaded bytes in host memory.

    Pinned for the GPU. On a machine without one this is ordinary pageable memory: "host" then is
    memory that does not count against the device budget.

    All of `capacity_bytes`, rounded up to 512 B, is taken and touched at once, so that no step
    pays for page faults. Raises StorageError if the machine has less memory available. Where more
    is needed than that, the store grows by slabs up to `limit_bytes`, and never shrinks.
    """

    tier = "host"
    _reaches_device = True

    def __init__(
        self,
        capacity_bytes: int,
        *,
        limit_bytes: int = 0,
        piece_bytes: int = PIECE_BYTES,
        checksums: bool = False,
        reach: Reach | None = None,
    ) -> None:
        capacity = round_up(capacity_bytes, GRANULE)
        self._limit = max(capacity, limit_bytes - limit_bytes % GRANULE)
        _require_memory(capacity)
        sizes = [min(SLAB_BYTES, capacity - at) for at in range(0, capacity, SLAB_BYTES)]
        space = Space(sizes, granule=GRANULE, piece_bytes=piece_bytes)
        super().__init__(space, checksums=checksums, reach=reach)
        self._slabs: list[mmap.mmap] = []
        self._addresses: list[int] = []
        with ExitStack() as stack:
            stack.callback(self.close)
            for size in sizes:
                self._take(size)
            stack.pop_all()

    @property
    def io_path(self) -> str:
        """`host-memory`: copies to and from it."""
        return "host-memory"

    def allocate(self, nbytes: int) -> Extent:
        """Reserve `nbytes` bytes in granules of 512 B.

        Raises StorageError with the needed and the free bytes at the cap.
        """
        extent = self._space.allocate(nbytes)
        while extent is None and self._grow():
            extent = self._space.allocate(nbytes)
        if extent is None:
            msg = (
                f"host memory for offloaded tensors is used up: "
                f"{round_up(nbytes, GRANULE)} bytes needed, {self.free_bytes} of "
                f"{self.capacity_bytes} bytes free"
            )
            raise StorageError(msg, hint="make the plan with more `--host-memory`")
        return extent

    def close(self) -> None:
        """Give the slabs back to the system."""
        while self._slabs:
            self._reach.unpin(self._addresses.pop())
            self._slabs.pop().close()

    def _grow(self) -> bool:
        """Take another slab if there may be one; return whether there is."""
        more = min(SLAB_BYTES, self._limit - self.capacity_bytes)
        if more <= 0:
            return False
        try:
            _require_memory(more)
            self._take(more)
        except StorageError:
            self._limit = self.capacity_bytes
            return False
        self._space.add(more)
        return True

    def _take(self, nbytes: int) -> None:
        """Take a slab of memory from the system."""
        slab = _slab(nbytes)
        self._reach.pin(address_of(slab), nbytes)
        self._slabs.append(slab)
        self._addresses.append(address_of(slab))

    def _write(self, piece: Piece, address: int) -> None:
        self._reach.copy(self.place(piece), address, piece.nbytes)

    def _read(self, piece: Piece, address: int) -> None:
        self._reach.copy(address, self.place(piece), piece.nbytes)

    def _place_name(self, piece: Piece) -> str:
        return f"host memory slab {piece.volume}"

    def place(self, piece: Piece) -> int:
        """Return the host address of a piece; raises StorageError once the store is closed."""
        try:
            return self._addresses[piece.volume] + piece.offset
        except IndexError as error:
            msg = "the host memory store is closed"
            raise StorageError(msg) from error


def _slab(nbytes: int) -> mmap.mmap:
    """Return touched memory, in huge pages where the system gives them."""
    try:
        slab = mmap.mmap(-1, nbytes)
    except OSError as error:
        msg = f"cannot take {nbytes} bytes of host memory: {error.strerror}"
        raise StorageError(msg, hint="make the plan with less `--host-memory`") from error
    with suppress(OSError):
        slab.madvise(mmap.MADV_HUGEPAGE)
    ctypes.memset(address_of(slab), 0, nbytes)
    return slab


def _require_memory(nbytes: int) -> None:
    available = _available_bytes()
    if available is not None and nbytes > available:
        msg = f"too little host memory: {nbytes} bytes needed, {available} bytes available"
        raise StorageError(msg, hint="make the plan with less `--host-memory`")


def _available_bytes() -> int | None:
    """Return what the kernel can give without swapping; None where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
