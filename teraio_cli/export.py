"""`teraio export`: a trace, with a plan if one is named, for Perfetto."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated

import typer

from teraio.profiler.errors import BadInputError, UsageError
from teraio_cli.outputs import (
    STDIO,
    input_label,
    open_input,
    open_output,
    require_output,
    say,
    text_of,
)

if TYPE_CHECKING:
    from teraio.planner.plan import Plan
    from teraio.profiler.trace import Trace


def export(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="The trace; `-` is stdin.")],
    plan: Annotated[
        str | None, typer.Option(metavar="PLAN", help="Show what this plan of it does as well.")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="PATH", help="The events; `-` is stdout.")
    ] = "trace.json",
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
) -> None:
    """Write one step as trace events, which Perfetto and chrome://tracing show.

    There are the ops and the memory each needs; with a plan also what ops wait for and the time
    each move may take.
    """
    require_output(output, force=force, inputs=(trace, plan))
    if trace == plan == STDIO:
        msg = "the trace and the plan cannot both be stdin"
        raise UsageError(msg, hint="name a file for one of them")
    from teraio.planner.perfetto import trace_events
    from teraio.planner.step import load_step

    recorded, sha256 = _read_trace(trace)
    made = None if plan is None else _read_plan(plan, sha256, input_label(trace))
    with open_output(output, force=force) as stream, text_of(stream) as text:
        text.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        events = trace_events(load_step(recorded), made)
        text.write(",\n".join(json.dumps(event) for event in events))
        text.write("\n]}\n")
    say("next: open it at ui.perfetto.dev, or with `chrome://tracing`")


def _read_trace(source: str) -> tuple[Trace, str]:
    from teraio.profiler.trace import read_trace

    with open_input(source) as stream:
        recorded = read_trace(stream, name=input_label(source))
        stream.seek(0)
        return recorded, hashlib.file_digest(stream, "sha256").hexdigest()


def _read_plan(source: str, sha256: str, trace: str) -> Plan:
    from teraio.planner.plan_file import read_plan

    with open_input(source) as stream, text_of(stream) as text:
        made = read_plan(text, name=input_label(source))
    if made.trace.sha256 != sha256:
        msg = f"the plan is for another trace: `{input_label(source)}` was not made from `{trace}`"
        raise BadInputError(msg, hint="name the trace that the plan was made from")
    return made
