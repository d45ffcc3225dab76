"""Where the copies of chosen intervals go, and which of them have to be written.

Intervals that share a copy (see `copies`) stay together: the first of those in a tier writes it,
the others are drops.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from teraio.planner.copies import families
from teraio.planner.plan import HOST, SSD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from teraio.planner.problem import Problem
    from teraio.planner.step import Interval


class Chosen(NamedTuple):
    """An interval to use, an index into `Problem.intervals`, with the tier of its copy.

    `issue_after` is the op, counting on into the next step, after whose end the prefetch is to
    start; None stands for as late as possible, the op before the one that needs the tensor.
    """

    interval: int
    tier: str
    issue_after: int | None = None


class Placed(NamedTuple):
    """A chosen interval with the tier that its copy is in; `write` is false for a drop."""

    interval: Interval
    tier: str
    write: bool
    issue_after: int | None


class _Copy(NamedTuple):
    """What one tier holds for the `members`, indices of chosen intervals in the order of use.

    Host memory holds it for `length` ops from op `start` on. `clean` copies are never written.
    """

    tensor: int
    members: tuple[int, ...]
    clean: bool
    start: int
    length: int


def place_copies(problem: Problem, chosen: Sequence[Chosen]) -> list[Placed]:
    """Return the chosen intervals, each in a tier that has room for its copy.

    A copy that its tier does not allow or has no room for goes to the other one; intervals that
    neither takes are left out. SSD writes are granted in the order of `chosen`, host memory in
    the order of the step.
    """
    if not chosen:
        return []
    intervals = [problem.intervals[choice.interval] for choice in chosen]
    places = families(problem.step, intervals)
    tiers = [_allowed(problem, i, choice.tier) for i, choice in zip(intervals, chosen, strict=True)]

    def copies(tier: str) -> list[_Copy]:
        together = dict.fromkeys(
            (place.members, place.clean)
            for place, own in zip(places, tiers, strict=True)
            if own == tier
        )
        return [
            _copy(problem, intervals, tuple(m for m in members if tiers[m] == tier), clean=clean)
            for members, clean in together
        ]

    def move(copy: _Copy, tier: str | None) -> None:
        for member in copy.members:
            tiers[member] = tier

    left = problem.ssd_write_bytes
    for copy in copies(SSD):
        nbytes = _written(problem, copy)
        if left is None or nbytes <= left:
            left = None if left is None else left - nbytes
        else:
            move(copy, HOST if problem.host_bytes else None)
    for copy in _without_room(problem, copies(HOST)):
        nbytes = _written(problem, copy)
        if SSD in problem.tiers(copy.tensor) and (left is None or nbytes <= left):
            left = None if left is None else left - nbytes
            move(copy, SSD)
        else:
            move(copy, None)
    writing = {c.members[0] for tier in (SSD, HOST) for c in copies(tier) if not c.clean}
    return [
        Placed(interval, tier, index in writing, choice.issue_after)
        for index, (interval, tier, choice) in enumerate(zip(intervals, tiers, chosen, strict=True))
        if tier is not None
    ]


def _allowed(problem: Problem, interval: Interval, tier: str) -> str | None:
    allowed = problem.tiers(interval.tensor)
    return tier if tier in allowed else next(iter(allowed), None)


def _copy(
    problem: Problem, intervals: Sequence[Interval], members: tuple[int, ...], *, clean: bool
) -> _Copy:
    first, last = intervals[members[0]], intervals[members[-1]]
    n_ops = len(problem.step.ops)
    length = (last.after_op - first.after_op) % n_ops + last.needed_by_op - last.after_op - 1
    start, length = (0, n_ops) if clean else (first.after_op + 1, length)
    return _Copy(first.tensor, members, clean, start, length)


def _written(problem: Problem, copy: _Copy) -> int:
    return 0 if copy.clean else problem.step.tensors[copy.tensor].nbytes


def _without_room(problem: Problem, copies: Iterable[_Copy]) -> list[_Copy]:
    """Return the copies that host memory has no room for when those that start first go first.

    The second of two turns starts with what the first one left at its end, and keeps no copy
    that the first refused: what it keeps fits in a step that repeats.
    """
    kept = sorted(copies, key=lambda copy: copy.start)
    refused: list[_Copy] = []
    held: list[tuple[int, int]] = []
    used = 0
    for turn in range(2):
        asking, kept = kept, []
        for copy in asking:
            start, size = copy.start + turn * len(problem.step.ops), _size(problem, copy)
            while held and held[0][0] <= start:
                used -= heapq.heappop(held)[1]
            if used + size > problem.host_bytes:
                refused.append(copy)
            else:
                used += size
                heapq.heappush(held, (start + copy.length, size))
                kept.append(copy)
    return refused


def _size(problem: Problem, copy: _Copy) -> int:
    return problem.step.tensors[copy.tensor].size
