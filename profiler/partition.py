"""How a list of tensors is cut so that not all of them are in use at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHARE: Final = 16
"""Groups a long list is cut into: few enough that launch overhead stays small, many enough that
one group's working set is a small part of the whole."""

SMALLEST: Final = 1 << 20
"""Bytes: smaller groups save nothing worth a launch."""


def partition(sizes: Sequence[int]) -> list[slice]:
    """Cut a list into consecutive groups of at most 1/16 of its bytes, 1 MiB, or one entry.

    Depends on the sizes only, so that the recorded and the replayed program cut alike.
    """
    limit = max(sum(sizes) // SHARE, SMALLEST)
    groups: list[slice] = []
    start, filled = 0, 0
    for index, size in enumerate(sizes):
        if index > start and filled + size > limit:
            groups.append(slice(start, index))
            start, filled = index, 0
        filled += size
    if sizes:
        groups.append(slice(start, len(sizes)))
    return groups
