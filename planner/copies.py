"""Which intervals of a tensor share a copy, so that only the first of them has to write it.

A copy stays current from one write access to the next. Intervals between the same two writes
are a family; the first of its members that is used makes the copy, the others are drops. A
tensor that outlives steps and is never written in one needs no write: its copy is made once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.step import Interval, Step


class Place(NamedTuple):
    """An interval's family and its position there, in the order in which they follow the write.

    `members` are the indices of the family's intervals in that order.
    """

    family: int
    position: int
    members: tuple[int, ...]
    clean: bool


class Families(NamedTuple):
    """All families in a row: `members` are the indices of the intervals, each family's in the
    order in which they follow the write, and `later` tells which of them do so in the next
    step. `heads` is where each family begins in `members`, and `clean` whether it needs no
    write.
    """

    members: NDArray[np.int64]
    later: NDArray[np.bool_]
    heads: NDArray[np.int64]
    clean: NDArray[np.bool_]


def families(step: Step, intervals: Sequence[Interval]) -> list[Place]:
    """Return the place of each interval in its family."""
    found = in_families(step, intervals)
    places: dict[int, Place] = {}
    listed = found.members.tolist()
    borders = [*found.heads.tolist(), len(listed)]
    for family, clean in enumerate(found.clean.tolist()):
        members = tuple(listed[borders[family] : borders[family + 1]])
        for position, index in enumerate(members):
            places[index] = Place(family, position, members, clean)
    return [places[index] for index in range(len(listed))]


def in_families(step: Step, intervals: Sequence[Interval]) -> Families:
    """Return the families of the intervals, in the order of tensors and ops."""
    rows = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    tensor, after, n_ops = rows[:, 0], rows[:, 1], len(step.ops)
    written = [t * n_ops + u.op for t, of in enumerate(step.tensors) for u in of.uses if u.writes]
    writes = np.array(written, dtype=np.int64)
    persistent = np.array([t.persistent for t in step.tensors], dtype=bool)[tensor]
    first = np.searchsorted(writes, tensor * n_ops)
    count = np.searchsorted(writes, (tensor + 1) * n_ops) - first
    version = np.searchsorted(writes, tensor * n_ops + after, side="right") - first
    wraps = persistent & (version == 0)
    version = np.where(wraps, count, version)
    members = np.lexsort((after + np.where(wraps, n_ops, 0), version, tensor))
    new = (np.diff(tensor[members], prepend=-1) != 0) | (np.diff(version[members], prepend=-1) != 0)
    heads = np.flatnonzero(new)
    clean = (persistent & (count == 0))[members[heads]]
    return Families(members, wraps[members], heads, clean)
