"""The least memory that any plan can reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from teraio.planner.step import covers

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.typing import NDArray

    from teraio.planner.step import Interval, Step, StepTensor


@dataclass(frozen=True)
class Least:
    """The least memory: `nbytes`, the op that sets it and what must be resident there.

    `tensors` are sorted by size, the largest first. `host_lack_bytes` of other tensors are
    resident there only because host memory, the one tier they may go to, cannot hold them.
    """

    nbytes: int
    op: int
    workspace_bytes: int
    tensors: tuple[StepTensor, ...]
    host_lack_bytes: int = 0


def least_memory(
    step: Step,
    intervals: Sequence[Interval],
    host_only: Container[int] = (),
    host_bytes: int = 0,
) -> Least:
    """Return the least bytes in which the step can run if only `intervals` may be used.

    At each op stays what it uses, what is pinned or too small to move, and what is not inside
    an idle interval; of the tensors `host_only` no more than `host_bytes` can be away at once.
    The op with the most of it sets the least.
    """
    to_host = [interval for interval in intervals if interval.tensor in host_only]
    lack = np.maximum(absent_bytes(step, to_host) - host_bytes, 0)
    needed = step.demand - absent_bytes(step, intervals) + lack
    op = int(np.argmax(needed))
    away = {i.tensor for i in intervals if covers(i, op, len(step.ops))}
    staying = (t for i, t in enumerate(step.tensors) if i not in away and _alive(t, op))
    return Least(
        nbytes=int(needed[op]),
        op=op,
        workspace_bytes=step.ops[op].workspace_bytes,
        tensors=tuple(sorted(staying, key=lambda tensor: (-tensor.size, tensor.id))),
        host_lack_bytes=int(lack[op]),
    )


def absent_bytes(step: Step, intervals: Sequence[Interval]) -> NDArray[np.int64]:
    """Return the bytes away at each op with every interval used and no time lost in moving."""
    n_ops = len(step.ops)
    change = np.zeros(2 * n_ops + 1, dtype=np.int64)
    rows = [(step.tensors[i.tensor].size, i.after_op + 1, i.needed_by_op) for i in intervals]
    sizes, firsts, ends = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    np.add.at(change, firsts, sizes)
    np.subtract.at(change, ends, sizes)
    away = np.cumsum(change[:-1])
    return away[:n_ops] + away[n_ops:]


def _alive(tensor: StepTensor, op: int) -> bool:
    born = tensor.alloc_op or 0
    return born <= op and (tensor.free_op is None or op <= tensor.free_op)
