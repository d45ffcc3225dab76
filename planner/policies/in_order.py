"""When prefetches have to start that a channel serves one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from teraio.planner.bandwidth import transfer_ns
from teraio.planner.timing import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from teraio.planner.problem import Problem


def issues_in_order(problem: Problem, tier: str, indices: Iterable[int]) -> dict[int, int]:
    """Return the op after whose end each interval's prefetch from `tier` is to start.

    They are served in the order in which they are needed and start as late as all are in time,
    with unlimited memory; where the channel is too slow for that, long before. Two turns make
    the order right for a step that repeats.
    """
    timeline, intervals = Timeline.of(problem.step), problem.intervals
    n_ops, tensors = len(problem.step.ops), problem.step.tensors
    order = sorted(((intervals[k].needed_by_op % n_ops, k) for k in indices), reverse=True)
    issue: dict[int, int] = {}
    free_ns = 2 * timeline.period_ns
    for turn_ns in (0, -timeline.period_ns):
        for op, k in order:
            nbytes = tensors[intervals[k].tensor].nbytes
            free_ns = min(free_ns, timeline.start(op) + turn_ns)
            free_ns -= transfer_ns(problem.hardware, tier, nbytes, to_gpu=True)
            turn = intervals[k].needed_by_op - op
            issue[k] = timeline.last_end(free_ns - turn_ns) + turn
    return issue
