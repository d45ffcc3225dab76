"""ZeRO-Offload: gradients and optimizer states live in host memory.

"ZeRO-Offload: Democratizing Billion-Scale Model Training", arXiv 2101.06840; code: DeepSpeed,
`runtime/zero/stage_1_and_2.py` with `offload_optimizer`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from teraio.planner.minimum import absent_bytes
from teraio.planner.plan import HOST
from teraio.planner.policies.visits import Visits
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows

if TYPE_CHECKING:
    from teraio.planner.problem import Problem
    from teraio.planner.step import Interval

_KINDS: Final = {"gradient", "optimizer_state"}


def zero_offload(problem: Problem) -> Answer:
    """Keep gradients and optimizer states in host memory outside the optimizer.

    A gradient leaves as soon as it is computed; both are fetched for the update when the module
    before theirs is updated. Parameters and activations stay. The choice is by kind alone and
    does not look at the budget.

    Different from the original: the update runs on the device and not by the CPU's Adam, so that
    gradients and states come back for it and the updated parameters need not; what the original
    saves in traffic and pays in CPU time is therefore not in the prediction. Gradients that
    gather over micro-batches come back for each, where the original adds them up in host memory.

    Raises CannotFitError if host memory may not be used or is too small, or the step does not
    fit with those away.
    """
    if not problem.host_bytes:
        msg = "zero-offload keeps gradients and optimizer states in host memory, and may use none"
        raise CannotFitError(msg, hint="allow it with `--host-memory`, or take another policy")
    visits, tensors = Visits(problem.step), problem.step.tensors
    chosen = [
        Chosen(index, HOST, visits.ahead_of(interval.needed_by_op))
        for index, interval in enumerate(problem.intervals)
        if tensors[interval.tensor].kind in _KINDS and _outside_optimizer(problem, interval)
    ]
    actions = fit_windows(replace(problem, ssd=False), chosen)
    if len(actions) < 2 * len(chosen):
        needed = absent_bytes(problem.step, [problem.intervals[c.interval] for c in chosen]).max()
        msg = (
            f"zero-offload puts {needed} bytes of host memory to use, "
            f"{needed - problem.host_bytes} more than the {problem.host_bytes} it may"
        )
        raise CannotFitError(msg, hint="allow more host memory, or take another policy")
    return Answer(actions)


def _outside_optimizer(problem: Problem, interval: Interval) -> bool:
    ops = problem.step.ops
    inside = range(interval.after_op + 1, interval.needed_by_op)
    return any(ops[op % len(ops)].phase != "optimizer" for op in inside)
