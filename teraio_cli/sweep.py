"""`teraio sweep`: what more memory and faster hardware would give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from teraio.profiler.errors import InfeasibleError, UsageError
from teraio_cli.next_command import words_again
from teraio_cli.option_types import (
    AsJson,
    Force,
    HardwareFile,
    Keep,
    Margin,
    MinTensor,
    NeverSsd,
    Plot,
    PolicyName,
    SsdWrites,
    Tbw,
    Tiers,
    TimeLimit,
    TraceFile,
)
from teraio_cli.outputs import print_json, say

if TYPE_CHECKING:
    from teraio.planner.sweep import Sweep

_CHOICES: Final = {
    "--memory": "SIZE", "--host-memory": "SIZE", "--ssds": "N",
    "--ssd-read": "RATE", "--ssd-write": "RATE", "--host-link": "RATE",
}  # fmt: skip
"""What stands for a list of each option in the next command."""


def sweep(
    trace: TraceFile,
    memory: Annotated[
        str,
        typer.Option(metavar="SIZES", help="Device memory, as 16GiB,24GiB or as 40%,60%."),
    ],
    host_memory: Annotated[
        str, typer.Option(metavar="SIZES", help="Host memory that tensors may take, as 0,64GiB.")
    ] = "0",
    ssds: Annotated[
        str, typer.Option(metavar="NUMBERS", help="How many times the SSDs, as 1,2,4.")
    ] = "1",
    ssd_read: Annotated[
        str | None, typer.Option(metavar="RATES", help="What an SSD reads, as 3.5GB/s,6.7GB/s.")
    ] = None,
    ssd_write: Annotated[
        str | None, typer.Option(metavar="RATES", help="What an SSD writes.")
    ] = None,
    host_link: Annotated[
        str | None, typer.Option(metavar="RATES", help="What the host link gives each way.")
    ] = None,
    tiers: Tiers = None,
    hardware: HardwareFile = None,
    tbw: Tbw = None,
    ssd_writes: SsdWrites = None,
    keep: Keep = None,
    never_ssd: NeverSsd = None,
    min_tensor: MinTensor = "1MiB",
    margin: Margin = "0%",
    policy: PolicyName = "auto",
    time_limit: TimeLimit = 60.0,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Show what more memory or faster hardware would give: every combination of the lists.

    A row is never slower than one that has no more of anything. Where the step does not fit, it
    says the least memory that would do.
    """
    from teraio.planner.compare import require_policies
    from teraio.planner.points import Axes, points_of
    from teraio.planner.step import load_step, peak
    from teraio.planner.sweep import sweep as sweep_points
    from teraio.planner.units import parse_limit, parse_memory
    from teraio_cli.comparison_tables import print_csv, print_sweep, sweep_json
    from teraio_cli.inputs import read_hashed
    from teraio_cli.lists import parse_count, parse_list
    from teraio_cli.pictures import draw_sweep, require_picture
    from teraio_cli.plan_options import controls_of, hardware_of, parse_share
    from teraio_cli.plan_report import warn_of_controls
    from teraio_cli.progress import progress

    if as_json and as_csv:
        msg = "`--json` and `--csv` exclude each other"
        raise UsageError(msg, hint="leave one of them out")
    require_policies([policy])
    base = hardware_of(hardware, tbw=tbw)
    host_bytes = parse_list("--host-memory", host_memory, parse_limit)
    controls = controls_of(
        tiers=tiers, host_bytes=max(host_bytes), keep=keep or (), never_ssd=never_ssd or (),
        min_tensor=min_tensor, ssd_writes=ssd_writes,
    )  # fmt: skip
    rates = {
        "ssd_read": _rates("--ssd-read", ssd_read),
        "ssd_write": _rates("--ssd-write", ssd_write),
        "host_link": _rates("--host-link", host_link),
    }
    drives = parse_list("--ssds", ssds, parse_count)
    require_picture(plot, force=force, inputs=(trace, hardware))
    recorded, sha256 = read_hashed(trace)
    step = load_step(recorded)
    sizes = parse_list("--memory", memory, lambda text: parse_memory(text, peak(step)))
    axes = Axes(sizes, host_bytes, drives, **rates)
    points_of(axes, base)
    warn_of_controls(step, controls, max(host_bytes))
    with progress() as show:
        swept = sweep_points(
            recorded,
            axes,
            sha256=sha256,
            hardware=base,
            policy=policy,
            margin=parse_share(margin),
            controls=controls,
            time_limit_s=time_limit,
            step=step,
            on_point=lambda done, count: show(f"{done} of {count} points"),
        )
    if as_json:
        print_json(sweep_json(swept, sha256))
    else:
        (print_csv if as_csv else print_sweep)(swept)
    _require_a_plan(swept)
    if plot is not None:
        draw_sweep(swept, plot, force=force)
    _name_next(trace)


def _name_next(trace: str) -> None:
    """Name the command for one of the combinations; each list has a word in its place."""
    again = words_again(trace, ("--json", "--csv", "--plot", "--force"), _CHOICES)
    say(f"\nnext: teraio plan {again} -o plan.json")


def _rates(option: str, text: str | None) -> tuple[int | None, ...]:
    from teraio.planner.units import parse_rate
    from teraio_cli.lists import parse_list

    return (None,) if text is None else parse_list(option, text, parse_rate)


def _require_a_plan(swept: Sweep) -> None:
    from teraio.planner.units import format_bytes

    if any(row.outcome for row in swept.rows):
        return
    known = [(r.least_bytes, r.least_is_floor) for r in swept.rows if r.least_bytes is not None]
    msg = f"no plan fits any of the {len(swept.rows)} combinations"
    if not known:
        raise InfeasibleError(msg, hint="give more `--memory`")
    least, is_floor = min(known)
    amount = f"{least} bytes ({format_bytes(least)})"
    if is_floor:
        msg += f": at least {amount} are needed"
        raise InfeasibleError(msg, hint="`teraio plan --or-minimum` searches for the least")
    msg += f": the least possible is {amount}"
    raise InfeasibleError(msg, hint=f"begin with `--memory {least}`")
