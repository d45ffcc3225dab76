"""`teraio profile`: record where memory goes, op by op."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from teraio.planner.units import parse_limit, parse_size
from teraio.profiler.errors import NothingRecordedError, UsageError
from teraio.profiler.launcher import number_in
from teraio_cli.option_types import IO_TIMEOUT_S, HostMemory
from teraio_cli.outputs import STDIO, open_output, require_output, say
from teraio_cli.scripts import (
    quiet_torch,
    require_torch,
    say_how_it_ended,
    script_of,
    stdout_for,
)

if TYPE_CHECKING:
    from teraio.executor.demand import DemandPaging
    from teraio.profiler.trace import Trace


def profile(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="As after `python`.")
    ],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="PATH", help="The trace; `-` is stdout.")
    ] = "trace.parquet",
    is_module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is a module's name, as in `python -m`.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps to record.")] = 2,
    warmup: Annotated[int, typer.Option(min=0, help="Steps to let pass before.")] = 2,
    go_on: Annotated[
        bool, typer.Option("--all", help="Let the script go on once the steps are recorded.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep to so much device memory, by moving tensors away."),
    ] = None,
    ssd: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Where to, with --memory; several folders are striped."),
    ] = None,
    host_memory: HostMemory = "0",
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
) -> None:
    """Run a training script and record its steps into a trace.

    The script is stopped once the steps are recorded. A step is everything from one
    `optimizer.step()` to the next. A model that needs more than the device has is recorded with
    `--memory` and `--ssd`: slowly, and with the times of its ops as they are without moving.
    """
    if memory is None and (ssd or host_memory != "0"):
        msg = "`--ssd` and `--host-memory` are where tensors go, but no `--memory` is given"
        raise UsageError(msg, hint="add `--memory`, as in `--memory 20GiB`")
    limit = None if memory is None else parse_size(memory)
    host_bytes = parse_limit(host_memory)
    what = script_of(script, is_module=is_module)
    what.require()
    require_output(output, force=force, inputs=script[:1])
    quiet_torch()
    require_torch()
    from teraio.profiler.session import profile_script
    from teraio.profiler.trace import write_trace

    with ExitStack() as stack:
        stdout = stack.enter_context(stdout_for(output))
        paging = None if limit is None else stack.enter_context(_paging(limit, ssd, host_bytes))
        made = profile_script(
            what, steps=steps, warmup=warmup, go_on=go_on, ends_process=True, paging=paging
        )
        if made.trace is not None and stdout is not None:
            write_trace(made.trace, stdout)
    if made.trace is not None and stdout is None:
        with open_output(output, force=force) as stream:
            write_trace(made.trace, stream)
    if made.stopped_after:
        say(f"stopped the script after {made.stopped_after} steps; `--all` lets it go on")
    if paging is not None:
        _say_what_moved(paging)
    _report(made.trace, output, steady=made.steady)
    if made.exit_code:
        say_how_it_ended(made.exit_code)
        raise typer.Exit(made.exit_code)
    if made.trace is None:
        raise _nothing_recorded(made.unseen)


def _nothing_recorded(unseen: int) -> NothingRecordedError:
    if unseen:
        msg = f"{unseen} steps ended, and no op of theirs was seen: another thread ran them"
        hint = "train in the main thread; what other threads do is not recorded"
        return NothingRecordedError(msg, hint=hint)
    msg = "the script ended before one complete step: no `optimizer.step()` was seen"
    return NothingRecordedError(msg, hint="does it train? `teraio profile` records steps only")


def _paging(limit: int, ssd: list[Path] | None, host_bytes: int) -> DemandPaging:
    from teraio.executor.demand import DemandPaging
    from teraio.executor.residence import Limits
    from teraio.executor.stores.opening import StoreOptions

    rank = number_in(os.environ, "LOCAL_RANK", "RANK")
    stores = StoreOptions(folders=ssd or [Path()], rank=rank)
    paging = DemandPaging(Limits(limit, io_timeout_s=IO_TIMEOUT_S), stores, host_bytes=host_bytes)
    paging.restore = False  # the process is about to end
    return paging


def _say_what_moved(paging: DemandPaging) -> None:
    from teraio.planner.units import format_bytes

    counters = paging.counters
    io = ", ".join(f"{tier} by {path}" for tier, path in paging.io_path.items())
    out, back = sum(counters.offloaded.values()), sum(counters.prefetched.values())
    say(f"moved        {format_bytes(out)} out, {format_bytes(back)} back meanwhile; storage: {io}")
    if counters.over_budget_ops:
        say(
            f"warning: {counters.over_budget_ops} ops needed more than --memory; "
            f"the most was {format_bytes(counters.peak_bytes)}"
        )


def _report(trace: Trace | None, output: str, *, steady: bool) -> None:
    from teraio.planner.step import load_step, peak
    from teraio.planner.units import format_bytes, format_ns
    from teraio.profiler.trace import ops_by_step

    if trace is None:
        return
    step = load_step(trace)
    counts = ops_by_step(trace)
    if len(set(counts)) > 1:
        listed = ", ".join(map(str, counts))
        say(
            f"warning: the recorded steps differ: they have {listed} ops; plans are made for the "
            "last one, and `--warmup` and `--steps` choose which that is"
        )
    if not steady:
        say("warning: the script ended during the warm-up; the trace may hold set-up work")
    steps = f"{trace.info.steps} step" + "s" * (trace.info.steps > 1)
    say(
        f"recorded     {steps} of {len(step.ops)} ops, "
        f"{format_ns(step.period_ns)} a step, peak {format_bytes(peak(step))}"
    )
    file = "TRACE" if output == STDIO else output
    say(f"\nnext: teraio plan {file} -o plan.json --memory 60%")
