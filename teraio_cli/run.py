"""`teraio run`: run a script under a plan."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from teraio.planner.units import parse_rate, parse_time
from teraio.profiler.errors import DivergedError, StorageError, UsageError
from teraio.profiler.launcher import number_in
from teraio_cli.option_types import IO_TIMEOUT_S, IoPath, require_io
from teraio_cli.outputs import input_label, open_input, open_output, require_output, say, text_of
from teraio_cli.run_summary import summarise
from teraio_cli.scripts import quiet_torch, require_torch, say_how_it_ended, script_of

if TYPE_CHECKING:
    from teraio.executor.session import RunOptions
    from teraio.executor.stores.emulated import EmulatedDrive
    from teraio.planner.plan import Plan

MOST_SECONDS: Final = 366 * 86400

CAUGHT: Final = "the script caught this error and went on; its results may lack something"


def run(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="As after `python`.")
    ],
    plan: Annotated[str, typer.Option("--plan", hidden=True, help="The plan.")] = "",
    is_module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is a module's name, as in `python -m`.")
    ] = False,
    ssd: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder on an SSD; several are striped. [default: .]"),
    ] = None,
    io: IoPath = "auto",
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Hold torch's GPU allocator to the plan's budget too.")
    ] = False,
    emulate_ssd: Annotated[
        str | None,
        typer.Option(
            metavar="READ,WRITE[,LATENCY]",
            help="For experiments: host memory as slow as such an SSD, as in `6.7GB/s,6.5GB/s`.",
        ),
    ] = None,
    io_timeout: Annotated[
        int,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=MOST_SECONDS,
            help="End the run when a drive has not answered a request for so long; 0 is never.",
        ),
    ] = IO_TIMEOUT_S,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Check all bytes that are read back.")
    ] = False,
    verify: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="As `--checksums`, and check the gradients of N steps against a run without "
            "offload, for which the script is started once more.",
        ),
    ] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if the program is not the planned one.")
    ] = False,
    report: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write what happened as JSON.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a report that exists.")] = False,
) -> None:
    """Run a script under a plan: the same results, in the plan's memory."""
    if not plan:
        msg = "no plan is named"
        raise UsageError(msg, hint="`teraio run plan.json SCRIPT [ARGS]`")
    if report is not None:
        require_output(report, force=force, inputs=(plan, script[0]))
    what = script_of(script, is_module=is_module)
    what.require()
    require_io(io)
    emulated = emulated_drive(emulate_ssd) if emulate_ssd is not None else None
    planned = _read(plan)
    if enforce:
        allow_large_segments()
    quiet_torch()
    require_torch()
    from teraio.executor.reference import reference_digests
    from teraio.executor.session import RunOptions
    from teraio.executor.stores.opening import StoreOptions

    stores = StoreOptions(
        folders=ssd or [Path()],
        io=io,
        rank=number_in(os.environ, "LOCAL_RANK", "RANK"),
        checksums=checksums or verify > 0,
        emulated=emulated,
    )
    options = RunOptions(
        stores,
        enforce=enforce,
        io_timeout_s=io_timeout,
        expected=reference_digests(what, verify) if verify else (),
    )
    exit_code, done = _carry_out(planned, options, what, report, force=force)
    summarise(done, planned)
    if exit_code:
        say_how_it_ended(exit_code)
        raise typer.Exit(exit_code)
    if done["errors"]:
        raise StorageError(done["errors"][0], hint=CAUGHT)
    if strict:
        require_followed(done)
    if report is not None:
        say(f"\nnext: jq . {shlex.quote(report)}")
    else:
        say("\nnext: add `--report run.json` for stalls and bytes by cause")


def emulated_drive(text: str) -> EmulatedDrive:
    """Read `--emulate-ssd`; raises UsageError for anything but two rates and perhaps a time."""
    from teraio.executor.stores.emulated import EmulatedDrive

    read, _, rest = text.partition(",")
    write, _, latency = rest.partition(",")
    return EmulatedDrive(parse_rate(read), parse_rate(write), parse_time(latency) if latency else 0)


def allow_large_segments() -> None:
    """Let torch's GPU allocator grow its segments, unless the environment has settings for it.

    Memory that is free but in pieces would count against the budget. Pages of 12 MiB, the least
    it takes, leave less in the gaps between tensors than those of 20 MiB that it takes by itself.
    """
    if not any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True,large_segment_size_mb:12"


def require_followed(done: dict[str, Any]) -> None:
    """Raise DivergedError if a run did not do all that was planned."""
    if done["divergences"]:
        msg = f"{len(done['divergences'])} steps differ from the plan; {done['divergences'][0]}"
    elif done["executed_actions"] < done["planned_actions"]:
        missed = done["planned_actions"] - done["executed_actions"]
        msg = f"{missed} of {done['planned_actions']} planned actions were not executed"
    elif done["over_budget_ops"]:
        msg = f"the budget was exceeded at {done['over_budget_ops']} ops"
    else:
        return
    raise DivergedError(msg, hint="profile this script again and make a new plan")


def _read(source: str) -> Plan:
    from teraio.planner.plan_file import read_plan

    with open_input(source) as stream, text_of(stream) as text:
        plan = read_plan(text, name=input_label(source))
    if not plan.trace.program.signature:
        msg = f"`{input_label(source)}` was made from an imported trace and cannot be run"
        raise UsageError(msg, hint="record a trace of the script with `teraio profile`")
    return plan


def _carry_out(
    plan: Plan, options: RunOptions, script: Any, report: str | None, *, force: bool
) -> tuple[int, dict[str, Any]]:
    from teraio.executor.session import Run
    from teraio.profiler.script import run_script

    shown: list[str] = []

    def diverged(message: str) -> None:
        if not shown:
            say(f"warning: the program differs from the plan; {message}")
            say("planned evictions stop until the next step; later differences are only counted")
        shown.append(message)

    with Run(plan, options, diverged) as run:
        run.restore = False  # the process is about to end
        try:
            exit_code = run_script(script, ends_process=True)
        finally:
            done = run.report()
            if report is not None:
                with open_output(report, force=force) as stream:
                    stream.write(json.dumps(done, indent=2).encode() + b"\n")
    return exit_code, done
