"""What every store does alike: extents from a space, moved piece by piece, checked on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar

from teraio.executor.stores.memory import Checksums, HostReach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from teraio.executor.stores.base import Extent, Piece
    from teraio.executor.stores.memory import Reach
    from teraio.executor.stores.space import Space


class PiecedStore(ABC):
    """A store whose extents lie in a `Space`; a subclass moves the bytes of one piece.

    With `checksums`, each piece is checked against what was written when it is read back.
    """

    _reaches_device: ClassVar[bool] = False
    """Whether a subclass moves bytes of the device without staging them on the host."""

    def __init__(self, space: Space, *, checksums: bool, reach: Reach | None = None) -> None:
        self._space = space
        self._reach = reach or HostReach()
        self._checksums = Checksums() if checksums else None

    @abstractmethod
    def _write(self, piece: Piece, address: int) -> None:
        """Copy a piece's bytes from `address` into the store; raises StorageError."""

    @abstractmethod
    def _read(self, piece: Piece, address: int) -> None:
        """Copy a piece's bytes out of the store to `address`; raises StorageError."""

    @abstractmethod
    def _place_name(self, piece: Piece) -> str:
        """Return how a message calls the place of a piece."""

    @property
    def capacity_bytes(self) -> int:
        """The bytes reserved so far."""
        return self._space.capacity_bytes

    @property
    def has_checksums(self) -> bool:
        """Whether bytes are checked when they are read back."""
        return self._checksums is not None

    @property
    def free_bytes(self) -> int:
        """The reserved bytes that no extent holds."""
        return self._space.free_bytes

    def free(self, extent: Extent) -> None:
        """Give an extent back; raises StorageError if it is not allocated here."""
        self._space.require(extent)
        if self._checksums:
            self._checksums.forget(extent.pieces)
        self._space.free(extent)

    def pieces(self, extent: Extent) -> Sequence[Piece]:
        """Return the parts of a transfer, at most `piece_bytes` each."""
        return extent.pieces

    def describe(self, piece: Piece) -> str:
        """Return how a message calls a piece."""
        return f"{self._place_name(piece)} at offset {piece.offset}, length {piece.nbytes}"

    def write_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        """Write one piece of the buffer at `address`; returns its bytes. Raises StorageError."""
        self._space.require(extent)
        start = address + piece.start
        with self._staged(self._reach.outgoing, start, piece.nbytes) as source:
            if self._checksums:
                self._checksums.record(piece, source)
            self._write(piece, source)
        return piece.nbytes

    def read_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        """Read one piece into the buffer at `address`; returns its bytes. Raises StorageError."""
        self._space.require(extent)
        start = address + piece.start
        with self._staged(self._reach.incoming, start, piece.nbytes) as target:
            self._read(piece, target)
            if self._checksums:
                self._checksums.verify(piece, target, self.describe(piece))
        return piece.nbytes

    def _staged(
        self, stage: Callable[[int, int], AbstractContextManager[int]], address: int, nbytes: int
    ) -> AbstractContextManager[int]:
        """Lend a host address for the bytes at `address`, or that itself where it will do."""
        if self._reaches_device and self._checksums is None:
            return nullcontext(address)
        return stage(address, nbytes)
