"""The host memory that copies take, bin by bin, in a step that repeats."""

from __future__ import annotations

import numpy as np

from teraio.planner.bandwidth import add_cyclic

Span = tuple[int, int]
"""The bins from the first up to but not including the second, at most a step."""


class HostMemory:
    """The bytes of copies that host memory holds, for each tensor its spans."""

    def __init__(self, n_bins: int, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._used = np.zeros(2 * n_bins, dtype=np.int64)
        self._spans: dict[int, tuple[int, list[Span]]] = {}

    def fits(self, tensor: int, size: int, spans: list[Span]) -> bool:
        """Return whether there is room if the copies of `tensor` were held over `spans`."""
        if size > self.limit_bytes:
            return False
        before = self._spans.get(tensor, (0, []))
        self.hold(tensor, size, spans)
        fits = all(self._used[first:end].max() <= self.limit_bytes for first, end in spans)
        self.hold(tensor, *before)
        return fits

    def hold(self, tensor: int, size: int, spans: list[Span]) -> None:
        """Hold copies of `tensor` of `size` bytes over `spans` and nowhere else."""
        old_size, old = self._spans.pop(tensor, (0, []))
        self._add(old, -old_size)
        self._add(spans, size)
        if spans:
            self._spans[tensor] = size, spans

    def _add(self, spans: list[Span], nbytes: int) -> None:
        for first, end in spans:
            add_cyclic(self._used, first, np.full(end - first, nbytes, dtype=np.int64))
