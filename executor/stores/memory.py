"""Raw memory, given as an address and a number of bytes.

Nothing here keeps the memory alive: whoever passes an address must hold its owner until the
call, or the transfer it belongs to, is over.
"""

from __future__ import annotations

import ctypes
import mmap
import zlib
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from teraio.profiler.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from teraio.executor.stores.base import Piece


def view_of(address: int, nbytes: int) -> memoryview:
    """Return `nbytes` bytes at `address` as a writable view, without a copy."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def address_of(memory: mmap.mmap) -> int:
    """Return the address of a mapping; it is valid until the mapping is closed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy bytes between two addresses; other Python threads run meanwhile."""
    ctypes.memmove(target, source, nbytes)


@contextmanager
def aligned_memory(nbytes: int) -> Iterator[int]:
    """Lend the address of `nbytes` bytes that start at a page, filled and so really there."""
    memory = mmap.mmap(-1, max(nbytes, 1))
    try:
        page = bytes(range(1, 129)) * (mmap.PAGESIZE // 128)
        for start in range(0, nbytes, len(page)):
            memory[start : start + len(page)] = page[: nbytes - start]
        yield address_of(memory)
    finally:
        memory.close()


class Reach(Protocol):
    """How code on the host gets at the bytes of the device."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes between two addresses, each on the host or the device; returns when done."""

    def outgoing(self, address: int, nbytes: int) -> AbstractContextManager[int]:
        """Lend a host address that has the bytes at `address`, for the time of a `with` block."""

    def incoming(self, address: int, nbytes: int) -> AbstractContextManager[int]:
        """Lend a host address whose bytes are at `address` once the `with` block has ended."""

    def pin(self, address: int, nbytes: int) -> None:
        """Make the device copy to and from these bytes of the host at full speed.

        Raises StorageError if the system refuses.
        """

    def unpin(self, address: int) -> None:
        """Undo `pin`."""


class HostReach:
    """For the CPU as the device: its bytes are the host's."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes; other Python threads run meanwhile."""
        copy(target, source, nbytes)

    def outgoing(self, address: int, nbytes: int) -> AbstractContextManager[int]:
        """Lend the address itself."""
        return nullcontext(address)

    def incoming(self, address: int, nbytes: int) -> AbstractContextManager[int]:
        """Lend the address itself."""
        return nullcontext(address)

    def pin(self, address: int, nbytes: int) -> None:
        """Do nothing: there is no device to copy for."""

    def unpin(self, address: int) -> None:
        """Do nothing."""


class BouncePool:
    """Page-aligned buffers of at least one size, as many as were ever lent at the same time."""

    def __init__(self, nbytes: int, reach: Reach | None = None) -> None:
        self._nbytes = nbytes
        self._reach = reach or HostReach()
        self._idle: list[mmap.mmap] = []

    @contextmanager
    def lend(self, nbytes: int = 0) -> Iterator[int]:
        """Lend the address of a buffer of at least `nbytes` for the time of a `with` block."""
        try:
            buffer = self._idle.pop()
        except IndexError:
            buffer = self._new(self._nbytes)
        if len(buffer) < nbytes:
            self._end(buffer)
            buffer = self._new(nbytes)
        try:
            yield address_of(buffer)
        finally:
            self._idle.append(buffer)

    def close(self) -> None:
        """Give idle buffers back to the system."""
        while self._idle:
            self._end(self._idle.pop())

    def _new(self, nbytes: int) -> mmap.mmap:
        buffer = mmap.mmap(-1, nbytes)
        self._reach.pin(address_of(buffer), nbytes)
        return buffer

    def _end(self, buffer: mmap.mmap) -> None:
        self._reach.unpin(address_of(buffer))
        buffer.close()


class Checksums:
    """One CRC-32 per piece that was written, to be met when it is read."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], int] = {}

    def record(self, piece: Piece, address: int) -> None:
        """Note the bytes of a piece, which are at `address`."""
        self._written[piece.volume, piece.offset] = _crc(piece, address)

    def verify(self, piece: Piece, address: int, place: str) -> None:
        """Raise StorageError unless the bytes at `address` are those written to the piece."""
        wanted = self._written.get((piece.volume, piece.offset))
        found = _crc(piece, address)
        if wanted == found:
            return
        was = "was never written" if wanted is None else f"was written with CRC-32 {wanted:08x}"
        msg = f"{place}: read back with CRC-32 {found:08x}, {was}"
        raise StorageError(msg, hint="the stored bytes changed; check the drive and its folder")

    def forget(self, pieces: Sequence[Piece]) -> None:
        """Drop what is known of freed pieces."""
        for piece in pieces:
            self._written.pop((piece.volume, piece.offset), None)


def _crc(piece: Piece, address: int) -> int:
    return zlib.crc32(view_of(address, piece.nbytes))
