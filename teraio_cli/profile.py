"""`teraio profile`: record where memory goes, op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from teraio.profiler.errors import NothingRecordedError
from teraio_cli.outputs import STDIO, open_output, require_output, say
from teraio_cli.scripts import (
    quiet_torch,
    require_torch,
    say_how_it_ended,
    script_of,
    stdout_for,
)

if TYPE_CHECKING:
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
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
) -> None:
    """Run a training script and record its steps into a trace.

    The script is stopped once the steps are recorded. A step is everything from one
    `optimizer.step()` to the next.
    """
    what = script_of(script, is_module=is_module)
    what.require()
    require_output(output, force=force, inputs=script[:1])
    quiet_torch()
    require_torch()
    from teraio.profiler.session import profile_script
    from teraio.profiler.trace import write_trace

    with stdout_for(output) as stdout:
        made = profile_script(what, steps=steps, warmup=warmup, go_on=go_on, ends_process=True)
        if made.trace is not None and stdout is not None:
            write_trace(made.trace, stdout)
    if made.trace is not None and stdout is None:
        with open_output(output, force=force) as stream:
            write_trace(made.trace, stream)
    if made.stopped_after:
        say(f"stopped the script after step {made.stopped_after}; `--all` lets it go on")
    _report(made.trace, output, steady=made.steady)
    if made.exit_code:
        say_how_it_ended(made.exit_code)
        raise typer.Exit(made.exit_code)
    if made.trace is None:
        msg = "the script ended before one complete step: no `optimizer.step()` was seen"
        raise NothingRecordedError(msg, hint="does it train? `teraio profile` records steps only")


def _report(trace: Trace | None, output: str, *, steady: bool) -> None:
    from teraio.planner.step import load_step, peak
    from teraio.planner.units import format_bytes, format_ns

    if trace is None:
        return
    step = load_step(trace)
    if not steady:
        say("warning: the script ended during the warm-up; the trace may hold set-up work")
    say(
        f"recorded     {trace.info.steps} steps of {len(step.ops)} ops, "
        f"{format_ns(step.period_ns)} a step, peak {format_bytes(peak(step))}"
    )
    file = "TRACE" if output == STDIO else output
    say(f"\nnext: teraio plan {file} -o plan.json --memory 60%")
