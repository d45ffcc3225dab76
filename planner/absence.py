"""When the tensors of a plan are away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from teraio.planner.plan import Offload, Prefetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.plan import Action
    from teraio.planner.step import Step


def absences(actions: Sequence[Action]) -> list[tuple[Offload, Prefetch]]:
    """Return each offload with the prefetch that follows it, of actions in op order."""
    first: dict[int, Action] = {}
    latest: dict[int, Action] = {}
    pairs = []
    for action in actions:
        before = latest.get(action.tensor)
        if before is None:
            first[action.tensor] = action
        elif isinstance(before, Offload) and isinstance(action, Prefetch):
            pairs.append((before, action))
        latest[action.tensor] = action
    for tensor, last in latest.items():
        following = first[tensor]
        if isinstance(last, Offload) and isinstance(following, Prefetch):
            pairs.append((last, following))
    return pairs


def needs_without(
    step: Step, away: Sequence[tuple[int, int, int]] | NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the bytes each op needs, workspace included, with tensors away.

    `away` holds (bytes, first op, last op) of each absence, its last op counting on into the
    next step if it is before the first.
    """
    n_ops = len(step.ops)
    rows = np.array(away, dtype=np.int64).reshape(-1, 3)
    sizes, firsts, ends = rows[:, 0], rows[:, 1], rows[:, 2] + 1
    ends = np.where(ends <= firsts, ends + n_ops, ends)
    change = np.zeros(2 * n_ops + 1, dtype=np.int64)
    np.add.at(change, firsts, sizes)
    np.subtract.at(change, ends, sizes)
    gone = np.cumsum(change[:-1])
    return step.demand - gone[:n_ops] - gone[n_ops:]


def peak_without(step: Step, away: Sequence[tuple[int, int, int]] | NDArray[np.int64]) -> int:
    """Return the most bytes an op needs, workspace included, with tensors away.

    `away` is as in `needs_without`.
    """
    return int(needs_without(step, away).max())


def planned_peak(step: Step, actions: Sequence[Action]) -> int:
    """Return the most bytes an op needs if each transfer takes all the time the plan gives it."""
    size = {tensor.id: tensor.size for tensor in step.tensors}
    return peak_without(
        step,
        [(size[out.tensor], out.gone_by_op, into.after_op) for out, into in absences(actions)],
    )
