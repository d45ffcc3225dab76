"""Which bytes of a store are free. Nothing here touches a file or memory."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from teraio.executor.stores.base import Extent, Piece
from teraio.profiler.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def round_up(nbytes: int, granule: int) -> int:
    """Return the least multiple of `granule` that is not below `nbytes`."""
    return -(-nbytes // granule) * granule


class FreeList:
    """The free ranges of one volume of `capacity` bytes: sorted, disjoint, never touching."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._holes: list[tuple[int, int]] = [(0, capacity)] if capacity else []

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The free ranges as (offset, nbytes), by offset."""
        return tuple(self._holes)

    @property
    def free_bytes(self) -> int:
        """The bytes in all free ranges."""
        return sum(nbytes for _, nbytes in self._holes)

    def take(self, nbytes: int) -> int | None:
        """Take `nbytes` from the first hole that has them; return the offset, or None."""
        for index, (offset, size) in enumerate(self._holes):
            if size >= nbytes:
                self._holes[index : index + 1] = (
                    [(offset + nbytes, size - nbytes)] if size > nbytes else []
                )
                return offset
        return None

    def largest(self) -> int:
        """Return the size of the largest hole."""
        return max((nbytes for _, nbytes in self._holes), default=0)

    def give(self, offset: int, nbytes: int) -> None:
        """Put a range back and merge it with its neighbours.

        Raises ValueError if part of it is free already or outside the volume.
        """
        at = bisect_left(self._holes, (offset, 0))
        end = offset + nbytes
        before = self._holes[at - 1] if at else (0, 0)
        after = self._holes[at] if at < len(self._holes) else (self.capacity, 0)
        if sum(before) > offset or end > after[0]:
            msg = f"bytes {offset} to {end} are not taken"
            raise ValueError(msg)
        first, last = at, at
        if at and sum(before) == offset:
            first, offset = at - 1, before[0]
        if after[1] and after[0] == end:
            last, end = at + 1, sum(after)
        self._holes[first:last] = [(offset, end - offset)]

    def grow(self, nbytes: int) -> None:
        """Add `nbytes` free bytes at the end."""
        start = self.capacity
        self.capacity += nbytes
        self.give(start, nbytes)


class Space:
    """Extents striped over several volumes.

    Pieces go round robin over the volumes. A piece that fits no hole is cut to fit the largest
    ones, so an allocation succeeds exactly when enough bytes are free, however fragmented.
    """

    def __init__(self, capacities: Sequence[int], *, granule: int, piece_bytes: int) -> None:
        self.granule = granule
        self.piece_bytes = round_up(piece_bytes, granule)
        self._volumes = [FreeList(capacity - capacity % granule) for capacity in capacities]
        self._ids = itertools.count()
        self._turn = 0
        self._live: dict[int, Extent] = {}
        self._freed: deque[Extent] = deque()
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Extent | None:
        """Return an extent of `nbytes`, or None when fewer bytes are free."""
        with self._lock:
            self._settle()
            if round_up(nbytes, self.granule) > sum(v.free_bytes for v in self._volumes):
                return None
            extent = Extent(next(self._ids), nbytes, self._cut(nbytes))
            self._live[extent.id] = extent
            return extent

    def free(self, extent: Extent) -> None:
        """Give an extent back.

        Takes no lock, because a finalizer may call it in the middle of `allocate`.
        """
        self.require(extent)
        if self._live.pop(extent.id, None) is None:
            raise self._stranger(extent)
        self._freed.append(extent)

    def require(self, extent: Extent) -> None:
        """Raise StorageError if `extent` is not allocated here."""
        if self._live.get(extent.id) is not extent:
            raise self._stranger(extent)

    def grow(self, volume: int, nbytes: int) -> None:
        """Add `nbytes`, a multiple of the granule, at the end of a volume."""
        with self._lock:
            self._volumes[volume].grow(nbytes)

    def add(self, capacity: int) -> None:
        """Add a volume of `capacity` bytes, a multiple of the granule."""
        with self._lock:
            self._volumes.append(FreeList(capacity))

    @property
    def free_bytes(self) -> int:
        """The bytes that can be allocated, in whole granules."""
        with self._lock:
            self._settle()
            return sum(volume.free_bytes for volume in self._volumes)

    @property
    def capacity_bytes(self) -> int:
        """The bytes of all volumes, free or not."""
        return sum(volume.capacity for volume in self._volumes)

    def capacity_of(self, volume: int) -> int:
        """The bytes of one volume, free or not."""
        return self._volumes[volume].capacity

    def _settle(self) -> None:
        while self._freed:
            for piece in self._freed.popleft().pieces:
                size = round_up(piece.nbytes, self.granule)
                self._volumes[piece.volume].give(piece.offset, size)

    def _cut(self, nbytes: int) -> tuple[Piece, ...]:
        pieces = []
        start = 0
        while start < nbytes:
            left = nbytes - start
            volume, offset, size = self._take(round_up(min(left, self.piece_bytes), self.granule))
            pieces.append(Piece(start, min(size, left), volume, offset))
            start += size
        return tuple(pieces)

    def _take(self, nbytes: int) -> tuple[int, int, int]:
        count = len(self._volumes)
        for volume in ((self._turn + step) % count for step in range(count)):
            offset = self._volumes[volume].take(nbytes)
            if offset is not None:
                self._turn = (volume + 1) % count
                return volume, offset, nbytes
        volume = max(range(count), key=lambda v: self._volumes[v].largest())
        size = self._volumes[volume].largest()
        offset = self._volumes[volume].take(size)
        if not size or offset is None:
            msg = f"no room for {nbytes} bytes"
            raise StorageError(msg)
        return volume, offset, size

    def _stranger(self, extent: Extent) -> StorageError:
        msg = f"extent {extent.id} of {extent.nbytes} bytes is not allocated in this store"
        return StorageError(msg, hint="it was freed before, or belongs to another store")
