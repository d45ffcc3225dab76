"""SSDTrain: activations wait for the backward pass on the SSD.

"SSDTrain: An Activation Offloading Framework to SSDs for Faster Large Language Model Training",
arXiv 2408.10013; code: K-Wu/FlashTrain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from teraio.planner.bandwidth import transfer_ns
from teraio.planner.plan import SSD
from teraio.planner.policies.in_order import issues_in_order
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.tiers import Chosen
from teraio.planner.timing import Timeline
from teraio.planner.windows import fit_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.problem import Problem


def ssdtrain(problem: Problem) -> Answer:
    """Write each activation that waits for the backward pass to the SSD, and read it in order.

    Taken are those whose wait has an op over the budget inside. Stores are served in the order
    of the forward pass; where a load would find its store still in flight, the tensor is
    forwarded: it stays in memory. Parameters, gradients and optimizer states stay.

    Different from the original: the backward pass begins where the trace says, and the loads
    start by the time that they take, not one module ahead; what is forwarded is not written
    either, where the original's store goes on; a tensor is a storage, so that no two names of
    one are written twice; the amount is set by the budget and not by a trial step.

    Raises CannotFitError if the step does not fit with those away, or the SSD may not be used.
    """
    if not problem.ssd:
        msg = "ssdtrain writes activations to the SSD, which this plan may not use"
        raise CannotFitError(msg, hint="allow the SSD, or take another policy")
    stored = _stored(problem, _waiting(problem))
    issue = issues_in_order(problem, SSD, stored)
    return Answer(fit_windows(problem, [Chosen(k, SSD, issue[k]) for k in stored]))


def _waiting(problem: Problem) -> list[int]:
    """Return the intervals of activations from the forward pass on that cover an excess."""
    ops, tensors = problem.step.ops, problem.step.tensors
    over = problem.step.demand > problem.planned_bytes
    before = np.concatenate([[0], np.cumsum(over)])
    return [
        k
        for k, (tensor, after, needed) in enumerate(problem.intervals)
        if tensors[tensor].kind == "activation"
        and needed < len(ops)
        and ops[after].phase == "forward" != ops[needed].phase
        and before[needed] > before[after + 1]
        and SSD in problem.tiers(tensor)
    ]


def _stored(problem: Problem, waiting: Sequence[int]) -> list[int]:
    """Return those of `waiting` whose store is done when their load has to begin."""
    timeline, intervals = Timeline.of(problem.step), problem.intervals
    stored = []
    free_ns = 0
    for k in sorted(waiting, key=lambda k: intervals[k].after_op):
        nbytes = problem.step.tensors[intervals[k].tensor].nbytes
        out_ns, in_ns = (
            transfer_ns(problem.hardware, SSD, nbytes, to_gpu=to_gpu) for to_gpu in (False, True)
        )
        done_ns = max(free_ns, int(timeline.ends[intervals[k].after_op])) + out_ns
        if done_ns <= timeline.start(intervals[k].needed_by_op) - in_ns:
            free_ns = done_ns
            stored.append(k)
    return stored
