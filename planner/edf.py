"""Preemptive earliest-deadline-first service of one channel, for the checker."""

from __future__ import annotations

import heapq
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NEVER: Final = 1 << 200
"""A time after every other, in whatever unit."""


def lateness(
    arrivals: Iterable[tuple[int, int, int]], durations: Sequence[int]
) -> tuple[int, int] | None:
    """Serve (arrival, deadline, job) in order of arrival; return how late which job is, if any.

    Of those that wait the one with the earliest deadline is served, until another arrives: no
    order of service keeps more deadlines (Dertouzos 1974). Times are in any one unit; job k
    takes `durations[k]`.
    """
    waiting: list[tuple[int, int, int]] = []
    clock = 0
    for release, deadline, index in chain(arrivals, [(_NEVER, _NEVER, -1)]):
        while waiting and clock < release:
            first, job, left = waiting[0]
            if clock + left > release:
                heapq.heapreplace(waiting, (first, job, left - (release - clock)))
                break
            heapq.heappop(waiting)
            clock += left
            if clock > first:
                return clock - first, job
        if index >= 0:
            clock = max(clock, release)
            heapq.heappush(waiting, (deadline, index, durations[index]))
    return None
