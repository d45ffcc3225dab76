"""A store that keeps what another one keeps, but fails, stalls or falls short on request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from teraio.executor.stores.base import Extent, Piece, Store

Fault = Callable[[Piece], int | None]
"""Called before a piece moves: raises, waits, or returns the bytes to claim as moved."""


class FaultyStore:
    def __init__(self, inner: Store, fault: Fault) -> None:
        self.inner = inner
        self.fault = fault
        self.tier = inner.tier
        self.io_path = inner.io_path
        self.moved: list[tuple[str, int, int]] = []

    def allocate(self, nbytes: int) -> Extent:
        return self.inner.allocate(nbytes)

    def free(self, extent: Extent) -> None:
        self.inner.free(extent)

    def pieces(self, extent: Extent) -> Sequence[Piece]:
        return self.inner.pieces(extent)

    def describe(self, piece: Piece) -> str:
        return self.inner.describe(piece)

    def write_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        return self._move("write", self.inner.write_piece, extent, piece, address)

    def read_piece(self, extent: Extent, piece: Piece, address: int) -> int:
        return self._move("read", self.inner.read_piece, extent, piece, address)

    def close(self) -> None:
        self.inner.close()

    def _move(
        self,
        verb: str,
        move: Callable[[Extent, Piece, int], int],
        extent: Extent,
        piece: Piece,
        address: int,
    ) -> int:
        claimed = self.fault(piece)
        self.moved.append((verb, extent.id, piece.start))
        moved = move(extent, piece, address)
        return moved if claimed is None else claimed


class Gate:
    """A fault that holds every piece back until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()

    def __call__(self, piece: Piece) -> None:
        self.entered.release()
        if not self._open.wait(timeout=60):
            raise TimeoutError

    def open(self) -> None:
        self._open.set()

    def wait_for(self, pieces: int) -> None:
        """Return once so many pieces are held back."""
        for _ in range(pieces):
            assert self.entered.acquire(timeout=60)
