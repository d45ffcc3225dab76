"""Intervals that look alike at the cuts, taken together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from teraio.planner.copies import in_families

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.cuts import Cuts
    from teraio.planner.problem import Problem


class Lot(NamedTuple):
    """Families of intervals (see `copies`) that move alike.

    `spans` are the first and the end position of the cuts inside each of a family's intervals.
    Left out are intervals without a tight cut, unless the copy for a later one with a tight cut
    can be made there. `size` are the device bytes of all families, of which at least the share
    `filled` is moved, and `copies` their intervals, one for each span: indices into
    `Problem.intervals`.
    """

    spans: tuple[tuple[int, int], ...]
    clean: bool
    tiers: tuple[str, ...]
    size: int
    filled: float
    copies: tuple[tuple[int, ...], ...]


class Movable:
    """The intervals of a problem as arrays, family by family."""

    def __init__(self, problem: Problem) -> None:
        families = in_families(problem.step, problem.intervals)
        rows = np.array(problem.intervals, dtype=np.int64).reshape(-1, 3)[families.members]
        self._n_ops = len(problem.step.ops)
        self._after = rows[:, 1] + self._n_ops * families.later
        self._needed = rows[:, 2] + self._n_ops * families.later
        self._heads, self._clean = families.heads, families.clean
        self._members = families.members.tolist()
        tensors = rows[families.heads, 0].tolist()
        self._size = [problem.step.tensors[tensor].size for tensor in tensors]
        self._nbytes = [problem.step.tensors[tensor].nbytes for tensor in tensors]
        self._tiers = [problem.tiers(tensor) for tensor in tensors]

    def lots(self, cuts: Cuts, *, by_size: bool = False) -> list[Lot]:
        """Return the families with a tight cut inside, those with the same cuts together.

        With `by_size` only tensors of the same size are taken together.
        """
        first = _position(cuts, self._n_ops, 2 * self._after + 1, side="right")
        end = _position(cuts, self._n_ops, 2 * self._needed, side="left")
        useful = _tight_before(cuts, end) > _tight_before(cuts, first)
        clean, helps, begins = self._clean.tolist(), useful.tolist(), first[self._heads].tolist()
        spans = list(zip(first.tolist(), end.tolist(), strict=True))
        borders = [*self._heads.tolist(), len(spans)]
        found: dict[tuple[object, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for family in np.unique(_numbers(self._heads, len(spans))[useful]).tolist():
            if not self._tiers[family]:
                continue
            turn = begins[family] // len(cuts.events) * len(cuts.events)
            members = range(borders[family], borders[family + 1])
            last = max(k for k in members if helps[k])
            kept = [k for k in members if helps[k] or (k < last and not clean[family])]
            key = (
                tuple((spans[k][0] - turn, spans[k][1] - turn) for k in kept),
                clean[family],
                self._tiers[family],
                (self._size[family], self._nbytes[family]) if by_size else (),
            )
            copies = tuple(self._members[k] for k in kept)
            found.setdefault(key, []).append((family, copies))
        return [self._lot(key, alike) for key, alike in found.items()]

    def _lot(self, key: tuple[Any, ...], alike: list[tuple[int, tuple[int, ...]]]) -> Lot:
        size = sum(self._size[family] for family, _ in alike)
        filled = min(self._nbytes[family] / self._size[family] for family, _ in alike)
        spans, clean, tiers, _ = key
        copies = tuple(of_family for _, of_family in alike)
        return Lot(spans, clean, tiers, size, filled, copies)


def _numbers(heads: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the number of the family that each of `count` intervals in a row belongs to."""
    return np.searchsorted(heads, np.arange(count), side="right") - 1


def _position(
    cuts: Cuts, n_ops: int, events: NDArray[np.int64], *, side: Literal["left", "right"]
) -> NDArray[np.int64]:
    """Return how many cuts of this step and the next ones come before each event."""
    turn, event = np.divmod(events, 2 * n_ops)
    before: NDArray[np.int64] = np.searchsorted(cuts.events, event, side=side)
    before += turn * len(cuts.events)
    return before


def _tight_before(cuts: Cuts, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many tight cuts come before each position."""
    tight = np.concatenate([[0], np.cumsum(cuts.excess > 0)])
    turn, position = np.divmod(positions, len(cuts.events))
    counts: NDArray[np.int64] = tight[position] + turn * tight[-1]
    return counts
