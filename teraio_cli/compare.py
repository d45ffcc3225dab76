"""`teraio compare`: every policy side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from teraio.profiler.errors import InfeasibleError
from teraio_cli.next_command import words_again
from teraio_cli.option_types import (
    AsJson,
    Force,
    HardwareFile,
    HostLink,
    HostMemory,
    Keep,
    Margin,
    Memory,
    MinTensor,
    NeverSsd,
    OrMinimum,
    Plot,
    SsdRead,
    Ssds,
    SsdWrite,
    SsdWrites,
    Tbw,
    Tiers,
    TimeLimit,
    TraceFile,
)
from teraio_cli.outputs import print_json, say

if TYPE_CHECKING:
    from teraio.planner.compare import Comparison


def compare(
    trace: TraceFile,
    memory: Memory,
    host_memory: HostMemory = "0",
    tiers: Tiers = None,
    hardware: HardwareFile = None,
    ssd_read: SsdRead = None,
    ssd_write: SsdWrite = None,
    host_link: HostLink = None,
    ssds: Ssds = 1,
    tbw: Tbw = None,
    ssd_writes: SsdWrites = None,
    keep: Keep = None,
    never_ssd: NeverSsd = None,
    min_tensor: MinTensor = "1MiB",
    margin: Margin = "0%",
    or_minimum: OrMinimum = False,
    policies: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Those to compare, as greedy,g10. Default all."),
    ] = None,
    time_limit: TimeLimit = 60.0,
    as_json: AsJson = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Show what each policy makes of a memory budget.

    The first row is the step with unlimited memory, and the next the lower bound that no plan
    can beat. Policies that have no plan for the budget come last, with the reason.
    """
    from teraio.planner.compare import COMPARED, require_policies
    from teraio.planner.compare import compare as compare_policies
    from teraio.planner.step import load_step, peak
    from teraio.planner.units import parse_limit, parse_memory
    from teraio_cli.comparison_tables import comparison_json, print_comparison
    from teraio_cli.inputs import read_hashed
    from teraio_cli.lists import split_list
    from teraio_cli.pictures import draw_comparison, require_picture
    from teraio_cli.plan_options import controls_of, hardware_of, parse_share
    from teraio_cli.plan_report import warn_of_controls
    from teraio_cli.progress import progress

    names = COMPARED if policies is None else split_list("--policies", policies)
    require_policies(names)
    channels = hardware_of(
        hardware, ssd_read=ssd_read, ssd_write=ssd_write, host_link=host_link, ssds=ssds, tbw=tbw
    )
    host_bytes = parse_limit(host_memory)
    controls = controls_of(
        tiers=tiers, host_bytes=host_bytes, keep=keep or (), never_ssd=never_ssd or (),
        min_tensor=min_tensor, ssd_writes=ssd_writes,
    )  # fmt: skip
    require_picture(plot, force=force, inputs=(trace, hardware))
    recorded, sha256 = read_hashed(trace)
    step = load_step(recorded)
    memory_bytes = parse_memory(memory, peak(step))
    warn_of_controls(step, controls, host_bytes)
    with progress() as show:
        comparison = compare_policies(
            recorded,
            sha256=sha256,
            memory_bytes=memory_bytes,
            host_bytes=host_bytes,
            hardware=channels,
            policies=names,
            or_minimum=or_minimum,
            margin=parse_share(margin),
            controls=controls,
            time_limit_s=time_limit,
            step=step,
            on_policy=lambda name: show(f"planning with {name}"),
        )
    if as_json:
        print_json(comparison_json(comparison, sha256))
    else:
        print_comparison(comparison)
    _require_a_plan(comparison)
    if plot is not None:
        draw_comparison(comparison, plot, force=force)
    _report(comparison, trace)


def _require_a_plan(comparison: Comparison) -> None:
    from teraio.planner.units import format_bytes

    if comparison.lower_bound_ns is not None:
        return
    memory, least = comparison.budget.memory_bytes, comparison.least_bytes
    msg = f"no policy has a plan for {memory} bytes ({format_bytes(memory)})"
    if least is None:
        raise InfeasibleError(msg, hint="give more `--memory`, or name more `--policies`")
    amount = f"{least} bytes ({format_bytes(least)})"
    if comparison.least_is_floor:
        msg += f": at least {amount} are needed"
        raise InfeasibleError(msg, hint="`--or-minimum` searches for the least that has a plan")
    msg += f": the least possible is {amount}"
    raise InfeasibleError(msg, hint=f"take `--memory {least}`, or `--or-minimum` for just that")


def _report(comparison: Comparison, trace: str) -> None:
    from teraio.planner.units import format_bytes
    from teraio_cli.tables import format_sources

    budget = comparison.budget
    say("\ngap     how far a step is above the lower bound")
    say("waits   late prefetches, busy channels and memory not yet free, of the ideal step")
    say(f"budget  {format_bytes(budget.memory_bytes)}")
    say(f"rates   {format_sources(comparison.hardware.source)}")
    best = comparison.rows[0].policy
    again = words_again(trace, ("--policies", "--json", "--plot", "--force"))
    say(f"\nnext: teraio plan {again} --policy {best} -o plan.json")
