"""The instants of a step at which the lower bound and the integer program look at memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from teraio.planner.step import demand

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.step import Step

_ROOM_SHARE = 0.25
"""The share of the cuts that the time in which memory suffices gets. What happens there matters
only through the channel time that it offers."""


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


def choose_cuts(step: Step, planned_bytes: int, count: int) -> Cuts:
    """Return all instants of the step, or about `count` of them if it has more.

    The time over the budget is split evenly, and so is the rest. Of each part the op with the
    largest demand is taken.
    """
    excess = demand(step) - planned_bytes
    durations = np.array([op.duration_ns for op in step.ops], dtype=np.int64)
    events = np.arange(2 * len(step.ops))
    if len(events) > count:
        parts = _parts(step.slots, excess > 0, count)
        heads = np.flatnonzero(np.diff(parts, prepend=-1))
        tails = [*heads[1:].tolist(), len(parts)]
        ops = [a + int(excess[a:b].argmax()) for a, b in zip(heads.tolist(), tails, strict=True)]
        long = [op for op in ops if durations[op] * count > step.period_ns]
        events = np.unique(
            [2 * op for op in [*ops, int(excess.argmax())]] + [2 * op + 1 for op in long]
        )
    op = events // 2
    times = step.starts[op] + np.where(events % 2 == 0, 0, durations[op])
    return Cuts(events, excess[op], np.diff(times, append=step.period_ns + times[0]))


def _parts(slots: NDArray[np.int64], tight: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Return the part of each op, from 0 to `count` - 1 and not decreasing."""
    total = {over: max(1.0, float(slots[tight == over].sum())) for over in (True, False)}
    share = np.where(tight, (1 - _ROOM_SHARE) / total[True], _ROOM_SHARE / total[False])
    done = np.cumsum(slots * share)
    parts: NDArray[np.int64] = np.minimum(done / max(done[-1], 1e-9) * count, count - 1).astype(
        np.int64
    )
    return parts
