"""What a plan costs, in the figures by which plans are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from teraio.planner.endurance import endurance
from teraio.planner.simulate import simulate

if TYPE_CHECKING:
    from teraio.planner.plan import Plan, Traffic
    from teraio.planner.simulate import Stall
    from teraio.planner.step import Step


@dataclass(frozen=True)
class Outcome:
    """One steady step under a plan: ns, bytes and shares.

    `slowdown` is the step's time by the ideal one's. `gap` is how far it is above
    `lower_bound_ns`, which no plan for the same budget and hardware can beat, as a share of
    that. `ssd` and `host` are what moves each way, `ssd_write_bytes` and `ssd_days` what that
    does to the SSDs (see `Endurance`). `policy`, `seconds`, `solver` and `status` say how the plan
    was found.
    """

    step_ns: int
    slowdown: float
    lower_bound_ns: int
    gap: float
    stall: Stall
    peak_bytes: int
    ssd: Traffic
    host: Traffic
    ssd_write_bytes: int
    ssd_days: float | None
    policy: str
    seconds: float
    solver: str
    status: str


def outcome_of(step: Step, plan: Plan, lower_bound_ns: int) -> Outcome:
    """Return what `plan`, which is for `step`, costs beside a proven bound of the step's time."""
    cost = plan.prediction
    return Outcome(
        step_ns=cost.step_ns,
        slowdown=cost.step_ns / cost.ideal_ns,
        lower_bound_ns=lower_bound_ns,
        gap=cost.step_ns / lower_bound_ns - 1,
        stall=simulate(step, plan).stall,
        peak_bytes=cost.peak_bytes,
        ssd=cost.ssd,
        host=cost.host,
        ssd_write_bytes=cost.ssd.to_tier_bytes,
        ssd_days=endurance(plan).days,
        policy=plan.policy.name,
        seconds=plan.policy.seconds,
        solver=plan.policy.solver,
        status=plan.policy.status,
    )
