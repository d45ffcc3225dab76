"""`teraio inspect`: what is in a trace or a plan."""

from __future__ import annotations

from typing import IO, Annotated, Any, Final

import typer

from teraio.profiler.errors import BadInputError
from teraio_cli.next_command import after_plan, named
from teraio_cli.outputs import input_label, open_input, print_json, say, text_of

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
        say(f"\nnext: teraio plan {named(file, 'TRACE')} -o plan.json --memory 60%")
    else:
        fingerprint = summary["trace"]["fingerprint"]
        say(after_plan(file, fingerprint, otherwise="simulate TRACE PLAN"))


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

    if not head.lstrip().startswith((b"{", b"[")):
        msg = f"`{label}` is neither a trace nor a plan"
        raise BadInputError(msg, hint="traces are Parquet files, and plans are JSON")
    from teraio.planner.plan_file import read_plan
    from teraio_cli.plan_summary import summarise_plan

    with text_of(stream) as text:
        summary = summarise_plan(read_plan(text, name=label), top)
    # A file does not say how long the policy took.
    summary["policy"]["seconds"] = None
    return summary
