"""The instants of a step at which the lower bound and the integer program look at memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.problem import Problem

_TIGHT, _BORDERS, _ROOM = 0.4, 0.5, 0.1
"""The shares of the cuts that go to the time over the budget, to where the bytes of useful
intervals become idle or are needed, and to the rest of the time. On five steps of BERT, ViT and
llama, the bound was up to 0.08 of the ideal step lower where the borders had no share."""


class Cuts(NamedTuple):
    """Instants in order; they repeat with the step, so position k + len(events) is k again.

    An event 2 k is the start of op k and 2 k + 1 its end. `excess` is how many bytes that op is
    over the budget with every tensor resident; `window_ns` are the ns from each instant to the
    next one in a step with no stall, the last one's next being the first of the next step.
    """

    events: NDArray[np.int64]
    excess: NDArray[np.int64]
    window_ns: NDArray[np.int64]

    @property
    def tight(self) -> NDArray[np.int64]:
        """The positions, in three steps laid end to end, of the cuts that are over the budget."""
        return np.flatnonzero(np.tile(self.excess > 0, 3))


def choose_cuts(problem: Problem, count: int, at: Sequence[int] = ()) -> Cuts:
    """Return all instants of the step, or about `count` of them if it has more.

    The step is split into parts of equal weight. Of each part that is over the budget somewhere
    the op with the largest demand is taken, of the others the first one. Start and end of the ops
    `at`, and of those before them, are cuts in any case.
    """
    step = problem.step
    excess = step.demand - problem.planned_bytes
    durations = np.array([op.duration_ns for op in step.ops], dtype=np.int64)
    events = np.arange(2 * len(step.ops))
    if len(events) > count:
        parts = _parts(_weights(problem, excess > 0), count)
        heads = np.flatnonzero(np.diff(parts, prepend=-1)).tolist()
        tails = [*heads[1:], len(parts)]
        ops = [_worst(excess, head, tail) for head, tail in zip(heads, tails, strict=True)]
        ops.append(int(excess.argmax()))
        long = [op for op in ops if durations[op] * count > step.period_ns]
        near = {(op + before) % len(step.ops) for op in at for before in (-1, 0)}
        long += near
        events = np.unique([*(2 * op for op in (*ops, *near)), *(2 * op + 1 for op in long)])
    op = events // 2
    times = step.starts[op] + np.where(events % 2 == 0, 0, durations[op])
    return Cuts(events, excess[op], np.diff(times, append=step.period_ns + times[0]))


def _worst(excess: NDArray[np.int64], head: int, tail: int) -> int:
    worst = head + int(excess[head:tail].argmax())
    return worst if excess[worst] > 0 else head


def _weights(problem: Problem, tight: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the weight of each op in the choice of cuts."""
    step, n_ops = problem.step, len(tight)
    rows = np.array(problem.intervals, dtype=np.int64).reshape(-1, 3)
    before = np.concatenate([[0], np.cumsum(np.tile(tight, 2))])
    rows = rows[before[rows[:, 2]] > before[rows[:, 1] + 1]]
    sizes = np.array([tensor.size for tensor in step.tensors], dtype=np.float64)[rows[:, 0]]
    borders = np.bincount(rows[:, 1], sizes, n_ops)
    borders += np.bincount(rows[:, 2] % n_ops, sizes, n_ops)
    slots = step.slots.astype(np.float64)
    weights = np.zeros(n_ops)
    for share, part in ((_TIGHT, slots * tight), (_BORDERS, borders), (_ROOM, slots * ~tight)):
        weights += share * part / max(1.0, float(part.sum()))
    return weights


def _parts(weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the part of each op, from 0 to `count` - 1 and not decreasing."""
    done = np.cumsum(weights)
    parts = (done * (count / max(float(done[-1]), 1e-9))).astype(np.int64)
    return np.minimum(parts, count - 1)
