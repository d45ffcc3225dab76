"""Which intervals of a tensor share a copy, so that only the first of them has to write it.

A copy stays current from one write access to the next. Intervals between the same two writes
are a family; the first of its members that is used makes the copy, the others are drops. A
tensor that outlives steps and is never written in one needs no write: its copy is made once.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.step import Interval, Step


class Place(NamedTuple):
    """An interval's family and its position there, in the order in which they follow the write.

    `members` are the indices of the family's intervals in that order.
    """

    family: int
    position: int
    members: tuple[int, ...]
    clean: bool


def families(step: Step, intervals: Sequence[Interval]) -> list[Place]:
    """Return the place of each interval in its family."""
    together: dict[tuple[int, int], list[tuple[int, int]]] = {}
    clean: dict[tuple[int, int], bool] = {}
    writes: list[int] = []
    last_tensor = None
    for index, interval in enumerate(intervals):
        tensor = step.tensors[interval.tensor]
        if interval.tensor != last_tensor:
            writes = [use.op for use in tensor.uses if use.writes]
            last_tensor = interval.tensor
        version, order = bisect_right(writes, interval.after_op), interval.after_op
        if tensor.persistent and version == 0:
            version, order = len(writes), order + len(step.ops)
        key = (interval.tensor, version)
        clean[key] = tensor.persistent and not writes
        together.setdefault(key, []).append((order, index))
    places: dict[int, Place] = {}
    for family, (key, ordered) in enumerate(together.items()):
        members = tuple(index for _, index in sorted(ordered))
        for position, index in enumerate(members):
            places[index] = Place(family, position, members, clean[key])
    return [places[index] for index in range(len(intervals))]
