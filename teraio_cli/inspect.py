"""`teraio inspect`: what is in a trace or a plan."""

from __future__ import annotations

import shlex
from typing import IO, Annotated, Any, Final

import typer

from teraio_cli.outputs import STDIO, input_label, open_input, print_json, say, text_of

PARQUET: Final = b"PAR1"
"""The first bytes of every Parquet file."""


def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace or a plan; `-` is stdin.")],
    top: Annotated[int, typer.Option(min=1, help="How many tensors and actions to list.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what is in a trace or a plan.

    For a trace: where memory goes and what lies idle. For a plan: what moves and what it costs.
    The kind of file is found by content, whatever its name.
    """
    with open_input(file) as stream:
        summary = summarise(stream, input_label(file), top)
    is_trace = summary["file"] == "trace"
    if as_json:
        print_json(summary)
    else:
        from teraio_cli.tables import print_plan, print_trace

        (print_trace if is_trace else print_plan)(summary)
    if is_trace:
        say(f"\nnext: teraio plan {_name(file, 'TRACE')} -o plan.json --memory 60%")
    else:
        say(f"\nnext: teraio run {_name(file, 'PLAN')} SCRIPT")


def _name(file: str, what: str) -> str:
    return what if file == STDIO else shlex.quote(file)


def summarise(stream: IO[bytes], label: str, top: int) -> dict[str, Any]:
    """Return the summary of an open trace or plan.

    Raises BadInputError if it is neither of them.
    """
    head = stream.read(len(PARQUET))
    stream.seek(0)
    if head == PARQUET:
        from teraio.profiler.trace import read_trace
        from teraio_cli.trace_summary import summarise_trace

        return summarise_trace(read_trace(stream, name=label), top)

    from teraio.planner.plan_file import read_plan
    from teraio_cli.plan_summary import summarise_plan

    with text_of(stream) as text:
        return summarise_plan(read_plan(text, name=label), top)
