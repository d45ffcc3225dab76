"""A linear program while it is written, and what its multipliers prove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from teraio.planner.solver import Model

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_UNIT = float(np.finfo(np.float64).eps) / 2
"""The largest relative error of one operation on floats."""


class Draft:
    """Collects the variables and rows of a `Model`."""

    def __init__(self) -> None:
        self._columns: list[tuple[NDArray[Any], ...]] = []
        self._rows: list[tuple[NDArray[Any], ...]] = []
        self._entries: list[tuple[NDArray[Any], ...]] = []
        self.n_columns = 0
        self.n_rows = 0

    def columns(
        self, count: int, upper: float, *, cost: float = 0.0, whole: bool = False
    ) -> NDArray[np.int64]:
        """Add variables from 0 to `upper` and return their numbers."""
        parts = (np.full(count, cost), np.full(count, upper), np.full(count, whole))
        self._columns.append(parts)
        self.n_columns += count
        return np.arange(self.n_columns - count, self.n_columns)

    def rows(self, lower: ArrayLike, upper: ArrayLike) -> NDArray[np.int64]:
        """Add rows with these bounds, one or many, and return their numbers."""
        low, high = np.broadcast_arrays(
            np.atleast_1d(np.asarray(lower, dtype=float)), np.asarray(upper, dtype=float)
        )
        self._rows.append((low, high))
        self.n_rows += len(low)
        return np.arange(self.n_rows - len(low), self.n_rows)

    def put(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        """Set entries of the matrix; each place at most once."""
        self._entries.append(
            tuple(np.broadcast_arrays(np.asarray(rows), np.asarray(columns), np.asarray(values)))
        )

    def model(self) -> Model:
        """Return the program."""
        cost, upper, whole = (_joined(self._columns, k) for k in range(3))
        low, high = (_joined(self._rows, k) for k in range(2))
        row, column, value = (_joined(self._entries, k) for k in range(3))
        return Model(
            cost=cost.astype(float),
            lower=np.zeros(len(cost)),
            upper=upper.astype(float),
            whole=whole.astype(bool),
            row_lower=low.astype(float),
            row_upper=high.astype(float),
            row=row.astype(np.int64),
            column=column.astype(np.int64),
            value=value.astype(float),
        )


def _joined(parts: list[tuple[NDArray[Any], ...]], k: int) -> NDArray[Any]:
    return np.concatenate([part[k] for part in parts]) if parts else np.zeros(0)


def proven_least(model: Model, duals: NDArray[np.float64]) -> float:
    """Return what the objective cannot be below, whatever made the `duals`.

    For multipliers y with the sign that the side of its row allows, b y + sum of min over
    0 <= x <= u of (c - A' y) x is such a bound (Lagrange). Variables that have no upper bound
    need c >= A' y: all y are scaled down to have it, which needs c to be 0 wherever u is
    finite, as here. From the value is taken the most that rounding can have added: each of the
    terms passes through no more roundings than there are terms (Higham, Accuracy and Stability
    of Numerical Algorithms, 3.1).
    """
    low, high = model.row_lower, model.row_upper
    y = np.where(np.isinf(low), np.minimum(duals, 0), duals)
    y = np.where(np.isinf(high), np.maximum(y, 0), y)
    terms = model.value * y[model.row]
    pull = np.bincount(model.column, weights=terms, minlength=len(model.cost))
    size = np.bincount(model.column, weights=np.abs(terms), minlength=len(model.cost))
    free = np.isinf(model.upper)
    error = (len(terms) + len(y) + len(pull) + 32) * _UNIT
    bounds = np.where(y > 0, low, np.where(y < 0, high, 0.0)) * y
    reached = np.minimum(-pull[~free], 0) * model.upper[~free]
    most = np.abs(bounds).sum() + (size[~free] * model.upper[~free]).sum()
    value = float(bounds.sum() + reached.sum() - 2 * error * most)
    strain = float(((pull + error * size)[free] / model.cost[free]).max(initial=1.0))
    return max(0.0, value) / (strain * (1 + error))
