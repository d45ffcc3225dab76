"""What every store does alike: extents from a space, moved piece by piece, checked on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from teraio.executor.stores.memory import Checksums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.executor.stores.base import Extent, Piece
    from teraio.executor.stores.space import Space


class PiecedStore(ABC):
    """A store whose extents lie in a `Space`; a subclass moves the bytes of one piece.

    With `checksums`, each piece is checked against what was written when it is read back.
    """

    def __init__(self, space: Space, *, checksums: bool) -> None:
        self._space = space
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

    def write_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        """Write one piece of the buffer at `address`; returns its bytes. Raises StorageError."""
        self._space.require(extent)
        if self._checksums:
            self._checksums.record(piece, address)
        self._write(piece, address + piece.start)
        return piece.nbytes

    def read_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        """Read one piece into the buffer at `address`; returns its bytes. Raises StorageError."""
        self._space.require(extent)
        self._read(piece, address + piece.start)
        if self._checksums:
            self._checksums.verify(piece, address, self._place_name(piece))
        return piece.nbytes
