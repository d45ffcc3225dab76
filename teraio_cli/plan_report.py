"""What `teraio plan` says of the plan it made, on stderr."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from teraio.planner.controls import matches
from teraio.planner.endurance import endurance
from teraio.planner.plan import HOST, SSD
from teraio.planner.units import format_bytes, format_ns
from teraio_cli.outputs import say
from teraio_cli.tables import endurance_fact, format_bound, format_sources, format_stall

if TYPE_CHECKING:
    from teraio.planner.plan import Controls, Plan
    from teraio.planner.step import Step


def warn_of_controls(step: Step, controls: Controls, host_bytes: int) -> None:
    """Warn of controls that have no effect, which is mostly a slip; raises UsageError.

    UsageError is for a pattern that is no regular expression.
    """
    for option, patterns in (("--keep", controls.keep), ("--never-ssd", controls.never_ssd)):
        for pattern, found in matches(step, patterns).items():
            if not found:
                say(f"warning: `{option} {pattern}` matches no tensor")
    if host_bytes and HOST not in controls.tiers:
        say("warning: `--host-memory` has no effect with `--tiers ssd`")


def report(made: Plan, step: Step, peak_bytes: int, asked_bytes: int) -> None:
    """Say what the plan costs; `asked_bytes` is the memory that the user asked for."""
    cost = made.prediction
    with_plan = format_bytes(cost.peak_bytes)
    raised = made.budget.memory_bytes > asked_bytes
    say(f"peak         {format_bytes(peak_bytes)} without, {with_plan} as planned")
    say(f"budget       {format_bytes(made.budget.memory_bytes)}{_least(made) if raised else ''}")
    say(f"step         {format_ns(cost.ideal_ns)} ideal, {format_ns(cost.step_ns)} predicted")
    say(f"stall        {format_stall(cost.stall_ns, cost.ideal_ns)}")
    say(f"lower bound  {format_bound(cost.step_ns, cost.lower_bound_ns)}")
    how = filter(None, (made.policy.name, made.policy.solver, made.policy.status))
    say(f"policy       {' '.join(how)}")
    _report_moves(made)
    _report_controls(made, step)
    say(f"rates        {format_sources(made.hardware.source)}")


def _least(made: Plan) -> str:
    ruled = made.controls
    scarce = ruled.ssd_write_bytes is not None or SSD not in ruled.tiers or ruled.never_ssd
    return ", the least that was found" if scarce else ", the least possible"


def _report_moves(made: Plan) -> None:
    cost = made.prediction
    for tier, moved in (("ssd", cost.ssd), ("host", cost.host)):
        if moved.to_tier_bytes or moved.to_gpu_bytes:
            say(
                f"{tier:<12} {format_bytes(moved.to_tier_bytes)} out, "
                f"{format_bytes(moved.to_gpu_bytes)} back, "
                f"{format_bytes(moved.dropped_bytes)} dropped in each step"
            )
    if cost.ssd.to_tier_bytes:
        say(f"ssd wear     {endurance_fact(asdict(endurance(made)))}")
    if made.actions:
        say(f"tensors      {len(made.tensors)} move, in {len(made.actions)} actions")
    else:
        say("tensors      none has to move: the step fits")


def _report_controls(made: Plan, step: Step) -> None:
    ruled = made.controls
    for name, patterns in (("kept", ruled.keep), ("never on ssd", ruled.never_ssd)):
        for pattern, found in matches(step, patterns).items():
            size = format_bytes(sum(step.tensors[index].size for index in found))
            if found:
                say(f"{name:<12} {len(found)} tensors, {size}, that match `{pattern}`")
    if ruled.ssd_write_bytes is not None:
        say(f"write limit  {format_bytes(ruled.ssd_write_bytes)} to the SSD in each step")
