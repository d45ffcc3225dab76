"""What every store promises: pieces of raw memory go to a tier and come back unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE_BYTES: Final = 4 << 20
"""Bytes a transfer is cut into. Source: `benchmarks/posix_store.py --sweep`: with two threads,
pieces of 2 to 8 MiB are equally fast; 1 MiB and, through bounce buffers, 16 MiB lose."""


@dataclass(frozen=True)
class Piece:
    """The part `[start, start + nbytes)` of a buffer, kept at `offset` of volume `volume`.

    A volume is one file or one slab of a store. All numbers but `volume` are bytes.
    """

    start: int
    nbytes: int
    volume: int
    offset: int


@dataclass(frozen=True)
class Extent:
    """Room for `nbytes` bytes in one store; `id` is never used twice by that store."""

    id: int
    nbytes: int
    pieces: tuple[Piece, ...]


class Store(Protocol):
    """Where bytes go. All methods may be called from several threads at once.

    An extent may be freed only when no transfer of it is under way.
    """

    @property
    def tier(self) -> str:
        """`ssd` or `host`."""

    @property
    def io_path(self) -> str:
        """How bytes really move: `posix-direct`, `posix-buffered` or `host-memory`."""

    def allocate(self, nbytes: int) -> Extent:
        """Reserve `nbytes` bytes; raises StorageError with the needed and the free bytes."""

    def free(self, extent: Extent) -> None:
        """Give an extent back; raises StorageError if it is not allocated here."""

    def pieces(self, extent: Extent) -> Sequence[Piece]:
        """Return the independent parts of a transfer; workers may move them in any order."""

    def describe(self, piece: Piece) -> str:
        """Return how a message calls a piece: its file or slab, its offset and its length."""

    def write_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        """Copy a piece of the buffer that starts at `address` into the store.

        Returns the bytes moved; raises StorageError.
        """

    def read_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        """Copy a piece back into the buffer that starts at `address`.

        Returns the bytes moved; raises StorageError.
        """

    def close(self) -> None:
        """Give back everything the store holds; may be called twice."""
