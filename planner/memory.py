"""The bytes each op needs over the budget, as tensors are taken away and brought back.

Positions are unwrapped: op k of the next step is k + n_ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.profiler.trace import GRANULE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_WEIGHT: Final = 1 << 30
_MOST_UNITS_BITS: Final = 31
"""The weights of a step add up to at most about the first, and the largest demand is below two
to the second units of bytes, so that their products, for two steps, stay inside 64 bits."""

_GRANULE_BITS: Final = GRANULE.bit_length() - 1


class Memory:
    """How far each op is over the budget (negative: room left) in a step that repeats."""

    def __init__(
        self, demand: NDArray[np.int64], budget_bytes: int, slots: NDArray[np.int64]
    ) -> None:
        over = demand - budget_bytes
        self.over = np.concatenate([over, over])
        largest = int(demand.max())
        self._unit_bits = max(_GRANULE_BITS, largest.bit_length() - _MOST_UNITS_BITS)
        self.weights = np.concatenate([_weights(slots)] * 2)

    def worst(self) -> int:
        """Return how far the worst op is over the budget, in bytes; not positive if none is."""
        return int(self.over[: len(self.over) // 2].max())

    def relief(self, first: int, end: int, size: int) -> int:
        """Return by how much taking `size` bytes away at ops `first` to `end` - 1 would reduce
        what is over the budget: units of bytes times the ops' time weights. The unit is 512 B,
        or more in a step of over 1 TiB.
        """
        reduced = np.minimum(self.over[first:end], size)
        np.maximum(reduced, 0, out=reduced)
        return int(self._units(reduced).dot(self.weights[first:end]))

    def relief_limits(
        self, firsts: NDArray[np.int64], ends: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return what `relief` cannot exceed for each of many windows, all at once."""
        over = np.maximum(self.over, 0)
        by_time = np.concatenate([[0], np.cumsum(np.where(over > 0, self.weights, 0))])
        by_bytes = np.concatenate([[0], np.cumsum(self._units(over) * self.weights)])
        full = (by_time[ends] - by_time[firsts]) * self._units(sizes)
        limits: NDArray[np.int64] = np.minimum(full, by_bytes[ends] - by_bytes[firsts])
        return limits

    def _units(self, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        return -(-nbytes >> self._unit_bits)

    def excess(self, first: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last op over the budget from `first` to `end` - 1, if any."""
        found = (self.over[first:end] > 0).nonzero()[0]
        return (first + int(found[0]), first + int(found[-1])) if len(found) else None

    def excesses(
        self, firsts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last op over the budget of each of many windows.

        Of a window with none, both are where it begins.
        """
        over = np.flatnonzero(self.over > 0)
        none = len(self.over)
        low = np.append(over, none)[over.searchsorted(firsts)]
        high = np.append(-1, over)[over.searchsorted(ends)]
        found = low < ends
        return np.where(found, low, firsts), np.where(found, high, firsts)

    def fits(self, first: int, end: int, size: int) -> bool:
        """Return whether ops `first` to `end` - 1 have room for `size` more bytes."""
        return first >= end or int(self.over[first:end].max()) + size <= 0

    def room_before(self, first: int, end: int, size: int) -> int:
        """Return the least `k` >= `first` such that ops `k` to `end` - 1 have room for `size`."""
        full = (self.over[first:end] > -size).nonzero()[0]
        return first + int(full[-1]) + 1 if len(full) else first

    def room_after(self, first: int, end: int, size: int) -> int:
        """Return the largest `k` <= `end` such that ops `first` to `k` - 1 have room for `size`."""
        full = (self.over[first:end] > -size).nonzero()[0]
        return first + int(full[0]) if len(full) else max(first, end)

    def add(self, first: int, end: int, nbytes: int) -> None:
        """Add `nbytes` at ops `first` to `end` - 1, less than a step; none if `first` >= `end`."""
        if first >= end:
            return
        n_ops = len(self.over) // 2
        length, first = end - first, first % n_ops
        inside = min(length, n_ops - first)
        self.over[first : first + length] += nbytes
        self.over[first + n_ops : first + n_ops + inside] += nbytes
        self.over[: length - inside] += nbytes


def _weights(slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots' ns, scaled down to add up to little enough; at least 1 each."""
    scale = max(1, -(-int(slots.sum()) // _MOST_WEIGHT))
    return np.maximum(slots // scale, 1)
