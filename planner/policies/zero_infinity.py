"""ZeRO-Infinity: what belongs to the parameters lives on the SSD.

"ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning", arXiv 2104.07857;
code: DeepSpeed, `runtime/zero/partitioned_param_coordinator.py` and `runtime/swap_tensor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from teraio.planner.plan import SSD
from teraio.planner.policies.visits import Visits
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows

if TYPE_CHECKING:
    from teraio.planner.problem import Problem

_KINDS: Final = {"parameter", "gradient", "optimizer_state"}


def zero_infinity(problem: Problem) -> Answer:
    """Send parameters, gradients and optimizer states to the SSD whenever their module is done.

    They are fetched again when the module before theirs begins; everything else stays. Nothing
    asks how much memory there is: all of them move, whether or not the step would fit with less.

    Different from the original: the update runs on the device, so that the states come there
    for it, module by module, where DeepSpeed streams them through the CPU's Adam; one rank
    holds everything, so nothing is partitioned or gathered; small parameters stay if the problem
    says so and not by `param_persistence_threshold`; the next module is what the trace shows,
    not a guess from the step before; activation checkpoints are not sent to host memory.

    Raises CannotFitError if the step does not fit with those away, or the SSD may not be used.
    """
    if not problem.ssd:
        msg = "zero-infinity keeps parameters on the SSD, which this plan may not use"
        raise CannotFitError(msg, hint="allow the SSD, or take another policy")
    visits, tensors = Visits(problem.step), problem.step.tensors
    chosen = [
        Chosen(index, SSD, visits.ahead_of(interval.needed_by_op))
        for index, interval in enumerate(problem.intervals)
        if tensors[interval.tensor].kind in _KINDS
        and SSD in problem.tiers(interval.tensor)
        and visits.number(interval.after_op) != visits.number(interval.needed_by_op)
    ]
    return Answer(fit_windows(problem, chosen))
