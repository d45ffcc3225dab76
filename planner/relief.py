"""By how much moving a tensor would bring a step closer to its budget, and at what cost.

Everything is counted with all tensors on the device: what other moves do is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from teraio.planner.bandwidth import transfer_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.problem import Problem
    from teraio.planner.step import Interval, Step, StepTensor


class Relief(NamedTuple):
    """Of an idle interval: how many ops inside are over the budget, and the most bytes that
    moving the tensor takes from what one of them is over, first so at `op`.
    """

    over_ops: int
    nbytes: int
    op: int | None


@dataclass(frozen=True)
class Cost:
    """What one tier takes to hold a tensor for an interval, in ns of its channels.

    `write_ns` is 0 for a tensor that is never written in a step: its copy stays current.
    """

    tier: str
    write_ns: int
    read_ns: int


def costs(problem: Problem, index: int) -> tuple[Cost, ...]:
    """Return what moving tensor `index` once costs in each tier that may hold it."""
    tensor, hardware = problem.step.tensors[index], problem.hardware

    def ns(tier: str, *, to_gpu: bool) -> int:
        return transfer_ns(hardware, tier, tensor.nbytes, to_gpu=to_gpu)

    return tuple(
        Cost(tier, 0 if _clean(tensor) else ns(tier, to_gpu=False), ns(tier, to_gpu=True))
        for tier in problem.tiers(index)
    )


def relief(step: Step, gap: Interval, planned_bytes: int) -> Relief:
    """Return what using `gap` relieves if the step may use `planned_bytes`."""
    n_ops = len(step.ops)
    inside = np.arange(gap.after_op + 1, gap.needed_by_op) % n_ops
    over = np.clip(step.demand[inside] - planned_bytes, 0, step.tensors[gap.tensor].size)
    worst = int(over.argmax())
    most = int(over[worst])
    return Relief(int((over > 0).sum()), most, int(inside[worst]) if most else None)


def rank(problem: Problem) -> dict[Interval, int]:
    """Return the place of each interval that relieves something, from 1 for the cheapest.

    They are ranked by the transfer time, in their cheapest tier, for each byte relieved.
    """
    step = problem.step
    by_bytes = _most_relieved(problem)
    cheapest: dict[int, int] = {}
    prices = []
    for interval, nbytes in zip(problem.intervals, by_bytes, strict=True):
        if nbytes > 0:
            if interval.tensor not in cheapest:
                ways = costs(problem, interval.tensor)
                cheapest[interval.tensor] = min(way.write_ns + way.read_ns for way in ways)
            prices.append((cheapest[interval.tensor] / nbytes, interval))
    order = sorted(prices, key=lambda item: (item[0], step.tensors[item[1].tensor].id, item[1]))
    return {interval: place for place, (_, interval) in enumerate(order, 1)}


def _most_relieved(problem: Problem) -> list[int]:
    """Return `Relief.nbytes` of every interval that may be used, all at once."""
    step, intervals = problem.step, problem.intervals
    over = step.demand - problem.planned_bytes
    sizes = np.array([step.tensors[i.tensor].size for i in intervals], dtype=np.int64)
    firsts = np.array([i.after_op + 1 for i in intervals], dtype=np.int64)
    ends = np.array([i.needed_by_op for i in intervals], dtype=np.int64)
    most = np.minimum(_largest(np.concatenate([over, over]), firsts, ends), sizes)
    found: list[int] = np.maximum(most, 0).tolist()
    return found


def _largest(
    values: NDArray[np.int64], firsts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the largest of `values` from each first to before each end, none of them empty.

    Two windows of a power of two cover any range; the maxima of all such windows are made level
    by level, each from the one before (a sparse table).
    """
    found = np.empty(len(firsts), dtype=np.int64)
    levels = np.frexp((ends - firsts).astype(np.float64))[1] - 1
    table = values
    for level in range(int(levels.max(initial=-1)) + 1):
        width = 1 << level
        own = levels == level
        found[own] = np.maximum(table[firsts[own]], table[ends[own] - width])
        table = np.maximum(table[:-width], table[width:])
    return found


def _clean(tensor: StepTensor) -> bool:
    return tensor.persistent and not any(use.writes for use in tensor.uses)
