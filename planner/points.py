"""The points of a sweep: combinations of budgets and hardware, and which of them has more."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.hardware import with_drives, with_rates
from teraio.profiler.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.plan import Hardware

MOST_POINTS: Final = 10_000
"""A sweep of more combinations is refused: it would hardly end, or be read."""


@dataclass(frozen=True)
class Axes:
    """The values to combine: bytes, drives, and bytes per second of one drive and of the link.

    None as a rate stands for that of the hardware which the sweep starts from.
    """

    memory_bytes: tuple[int, ...]
    host_bytes: tuple[int, ...] = (0,)
    drives: tuple[int, ...] = (1,)
    ssd_read: tuple[int | None, ...] = (None,)
    ssd_write: tuple[int | None, ...] = (None,)
    host_link: tuple[int | None, ...] = (None,)


@dataclass(frozen=True)
class Point:
    """One combination; the rates of `hardware` are of all its drives together."""

    memory_bytes: int
    host_bytes: int
    hardware: Hardware

    @property
    def amounts(self) -> tuple[int, ...]:
        """Memory, host memory and every rate: a point with no less of each can do no worse."""
        ssd, link = self.hardware.ssd, self.hardware.host_link
        return (
            self.memory_bytes,
            self.host_bytes,
            ssd.read_bytes_per_s,
            ssd.write_bytes_per_s,
            link.to_host_bytes_per_s,
            link.to_gpu_bytes_per_s,
        )


def points_of(axes: Axes, hardware: Hardware) -> tuple[Point, ...]:
    """Return all combinations, the first axis slowest.

    Raises UsageError for an axis with no value, a value that is not positive (host memory may be
    0) or that is there twice, and for more than `MOST_POINTS` combinations.
    """
    values = vars(axes)
    for name, own in values.items():
        _require_usable(_NAMES[name], own, least=0 if name == "host_bytes" else 1)
    count = prod(len(own) for own in values.values())
    if count > MOST_POINTS:
        msg = f"{count:,} combinations are too many: at most {MOST_POINTS:,} are planned for"
        raise UsageError(msg, hint="give fewer values, or sweep some of them on their own")
    return tuple(
        Point(memory, host, _hardware(hardware, drives, read, write, link))
        for memory, host, drives, read, write, link in product(*values.values())
    )


def neighbours_below(amounts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return for each of some points the largest of those that have no more of anything.

    The points' `amounts` are given in ascending order, each once; the answer indexes them. A
    point that has no more than one of these is left out: what holds for it holds through that one.
    """
    rows = np.array(amounts, dtype=np.int64)
    return [_largest(rows, index) for index in range(len(rows))]


def _largest(rows: NDArray[np.int64], index: int) -> list[int]:
    rest = np.flatnonzero((rows[:index] <= rows[index]).all(axis=1))
    largest = []
    while len(rest):
        largest.append(int(rest[-1]))
        rest = rest[(rows[rest] > rows[largest[-1]]).any(axis=1)]
    return largest


def _require_usable(name: str, values: tuple[int | None, ...], least: int) -> None:
    if not values:
        msg = f"no value is given for {name}"
        raise UsageError(msg, hint="give one, or several with commas between them")
    for index, value in enumerate(values):
        if value is not None and value < least:
            msg = f"{name} must be {'more than zero' if least else 'zero or more'}: {value}"
            raise UsageError(msg)
        if value in values[:index]:
            msg = f"a value for {name} is given twice: {value}"
            raise UsageError(msg, hint="give each once; the same amount may be written in two ways")


def _hardware(
    base: Hardware, drives: int, read: int | None, write: int | None, link: int | None
) -> Hardware:
    one = with_rates(base, ssd_read=read, ssd_write=write, host_link=link)
    return with_drives(one, drives)


_NAMES: Final = {
    "memory_bytes": "the memory",
    "host_bytes": "the host memory",
    "drives": "the number of SSDs",
    "ssd_read": "what an SSD reads",
    "ssd_write": "what an SSD writes",
    "host_link": "what the host link gives",
}
