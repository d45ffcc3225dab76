"""Times of ops as they would be without recording, from a step that was not recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

_HALVINGS: Final = 40


def fitted(
    starts: Sequence[int], durations: Sequence[int], total_ns: int
) -> tuple[list[int], list[int]]:
    """Return starts and durations that end at `total_ns`, all in ns, if they end later.

    Recording an op costs the device about the same for each, and makes it wait for the host in
    between: first the gaps between ops shrink, all in the same proportion; if there is none left,
    as much is taken off each op as it has, up to the same number of ns.
    """
    ends = list(accumulate(zip(starts, durations, strict=True), _last_end, initial=0))[1:]
    if not ends or ends[-1] <= total_ns:
        return list(starts), list(durations)
    gaps = [max(0, start - end) for start, end in zip(starts, [0, *ends], strict=False)]
    busy = sum(durations)
    if busy <= total_ns:
        share = (total_ns - busy) / max(sum(gaps), 1)
        return _laid_out([int(gap * share) for gap in gaps], durations)
    cut = _cut(durations, total_ns)
    return _laid_out([0] * len(gaps), [max(0, duration - cut) for duration in durations])


def _last_end(end: int, op: tuple[int, int]) -> int:
    start, duration = op
    return max(end, start + duration)


def _cut(durations: Sequence[int], total_ns: int) -> int:
    """Return the ns to take off each op, as far as it has them, so that `total_ns` are left."""
    low, high = 0, max(durations)
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        if sum(max(0, duration - middle) for duration in durations) > total_ns:
            low = middle + 1
        else:
            high = middle
        if low >= high:
            break
    return high


def _laid_out(gaps: Sequence[int], durations: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the starts of ops one after the other with these gaps before them, and durations."""
    at, starts = 0, []
    for gap, duration in zip(gaps, durations, strict=True):
        starts.append(at + gap)
        at += gap + duration
    return starts, list(durations)
