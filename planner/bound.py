"""A proven lower bound on the step time of any plan."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from teraio.planner.step import peak

if TYPE_CHECKING:
    from teraio.planner.problem import Problem


def lower_bound_ns(problem: Problem) -> int:
    """Return ns that no plan for `problem` can beat.

    A steady step takes at least the ideal time, as its ops run one after the other. Let E be
    how far the op with the largest demand is over the budget. At that op, storages that take E
    or more bytes are absent, and each of them is read back before its next use: once a step,
    as steps repeat. Of a storage's bytes on the device at least the share r is read, r being
    the least share of its allocated size that a movable storage fills. The SSD and, where host
    memory may be used, the host link read at the same time at no more than their full rates.
    So the step also takes at least r E divided by the sum of these rates.
    """
    step = problem.step
    excess = peak(step) - problem.planned_bytes
    tensors = {interval.tensor for interval in problem.intervals}
    if excess <= 0 or not tensors:
        return step.period_ns
    filled = min(Fraction(step.tensors[t].nbytes, step.tensors[t].size) for t in tensors)
    rate = problem.hardware.ssd.read_bytes_per_s
    if problem.host_bytes:
        rate += problem.hardware.host_link.to_gpu_bytes_per_s
    return max(step.period_ns, int(excess * filled * 10**9 / rate))
