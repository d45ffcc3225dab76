"""What `teraio run` says at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from teraio.planner.feedback import TO_TIER
from teraio_cli.outputs import say

if TYPE_CHECKING:
    from teraio.planner.plan import Plan


def summarise(done: dict[str, Any], plan: Plan) -> None:
    """Say what a run did, from its report, and what was not as planned."""
    from teraio.planner.units import format_bytes, format_ns

    steps = done["step_ns"][1:] or done["step_ns"]
    if not steps:
        say("warning: the script ended before its first step was complete")
        return
    typical = sorted(steps)[len(steps) // 2]
    io = ", ".join(f"{tier} by {path}" for tier, path in done["io_path"].items()) or "none"
    moved = sum(done["offloaded_bytes"].values()), sum(done["prefetched_bytes"].values())
    say(f"steps        {done['steps']}, {format_ns(typical)} each (median)")
    say(f"predicted    {format_ns(done['predicted_step_ns'])}, ideal {format_ns(done['ideal_ns'])}")
    say(
        f"peak         {format_bytes(done['peak_bytes'])} of a budget of "
        f"{format_bytes(done['budget_bytes'])}"
    )
    say(f"moved        {format_bytes(moved[0])} out, {format_bytes(moved[1])} back; storage: {io}")
    if done["allocator"] is not None:
        say(f"reserved     {format_bytes(done['allocator']['reserved_bytes'])} by torch at most")
    if done["verified_steps"]:
        say(f"verified     {done['verified_steps']} steps, gradients equal to the bit")
    if done["out_of_memory"]:
        say(
            f"warning: the device was out of memory {done['out_of_memory']} times; more was evicted"
        )
    if done["over_budget_ops"]:
        say(f"warning: the budget was exceeded at {done['over_budget_ops']} ops")
    if done["failed_writes"]:
        failed = done["failed_writes"]
        say(f"warning: {len(failed)} writes failed, and other tensors moved less; {failed[0]}")
    if done["divergences"]:
        say(f"warning: {len(done['divergences'])} steps differ from the plan")
        if len(done["divergences"]) >= done["steps"] - 1:
            say("hint: profile this script again and make a new plan")
    _warn_of_slow_ways(done["rates"], plan)


def _warn_of_slow_ways(rates: dict[str, dict[str, int]], plan: Plan) -> None:
    from teraio.planner.feedback import SLOW, beside
    from teraio.planner.units import format_rate

    slow = [way for way in beside(rates, plan.hardware) if way.is_slow]
    for way in slow:
        does = "wrote" if way.way == TO_TIER else "read"
        say(
            f"warning: {way.tier} {does} {format_rate(way.measured)}, under {SLOW:.0%} of the "
            f"{format_rate(way.planned)} that the plan counts on ({way.source})"
        )
    if slow:
        say("hint: `--report FILE` writes these rates, `teraio plan --feedback FILE` takes them")
