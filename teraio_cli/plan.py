"""`teraio plan`: decide what moves where and when."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from teraio.profiler.errors import UsageError
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
    from teraio.planner.plan import Hardware, Plan
    from teraio.profiler.trace import Trace


def plan(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="The trace; `-` is stdin.")],
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="Device memory, as 24GiB or as a share of the peak, 60%."
        ),
    ],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="PATH", help="The plan; `-` is stdout.")
    ] = "plan.json",
    host_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory that tensors may take.")
    ] = "0",
    hardware: Annotated[
        str | None, typer.Option(metavar="FILE", help="What `teraio bench` measured.")
    ] = None,
    ssd_read: Annotated[
        str | None, typer.Option(metavar="RATE", help="What the SSDs read, as 6.7GB/s.")
    ] = None,
    ssd_write: Annotated[
        str | None, typer.Option(metavar="RATE", help="What the SSDs write.")
    ] = None,
    host_link: Annotated[
        str | None, typer.Option(metavar="RATE", help="What the host link gives each way.")
    ] = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="How to search: auto, greedy.")
    ] = "auto",
    or_minimum: Annotated[
        bool, typer.Option("--or-minimum", help="Take the least possible memory if that is more.")
    ] = False,
    min_tensor: Annotated[
        str, typer.Option(metavar="SIZE", help="Smaller tensors stay on the device.")
    ] = "1MiB",
    margin: Annotated[
        str, typer.Option(metavar="PCT", help="Share of the memory to leave free.")
    ] = "0%",
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
) -> None:
    """Decide what moves where and when, for a memory budget.

    If the budget cannot be met, the error says what the least possible memory is and which op
    sets it.
    """
    from teraio.planner.make import make_plan
    from teraio.planner.plan_file import write_plan
    from teraio.planner.step import load_step, peak
    from teraio.planner.units import parse_memory, parse_size

    channels = _hardware(hardware, ssd_read, ssd_write, host_link)
    recorded, sha256 = _read(trace)
    peak_bytes = peak(load_step(recorded))
    memory_bytes = parse_memory(memory, peak_bytes)
    require_output(output, force=force)
    made = make_plan(
        recorded,
        sha256=sha256,
        memory_bytes=memory_bytes,
        host_bytes=0 if host_memory == "0" else parse_size(host_memory),
        hardware=channels,
        policy=policy,
        or_minimum=or_minimum,
        min_tensor_bytes=parse_size(min_tensor),
        margin=parse_share(margin),
    )
    with open_output(output, force=force) as stream, text_of(stream) as text:
        write_plan(made, text)
    _report(made, peak_bytes, memory_bytes)
    _name_next(output, recorded)


def _read(source: str) -> tuple[Trace, str]:
    from teraio.profiler.trace import read_trace

    with open_input(source) as stream:
        trace = read_trace(stream, name=input_label(source))
        stream.seek(0)
        return trace, hashlib.file_digest(stream, "sha256").hexdigest()


def _hardware(
    file: str | None, ssd_read: str | None, ssd_write: str | None, host_link: str | None
) -> Hardware:
    from teraio.planner.hardware import ASSUMED, read_hardware, with_rates
    from teraio.planner.units import parse_rate

    def rate(text: str | None) -> int | None:
        return None if text is None else parse_rate(text)

    return with_rates(
        read_hardware(Path(file)) if file else ASSUMED,
        ssd_read=rate(ssd_read),
        ssd_write=rate(ssd_write),
        host_link=rate(host_link),
    )


def parse_share(text: str) -> float:
    """Return the share that `5%` or `5` names, from 0 to less than 1.

    Raises UsageError for anything else.
    """
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        msg = f"not a percentage from 0 to less than 100: `{text}`"
        raise UsageError(msg, hint="write a share as `5%`")
    return share


def _report(made: Plan, peak_bytes: int, asked_bytes: int) -> None:
    from teraio.planner.units import format_bytes, format_ns
    from teraio_cli.tables import format_bound

    cost = made.prediction
    with_plan = format_bytes(cost.peak_bytes)
    raised = ", the least possible" if made.budget.memory_bytes > asked_bytes else ""
    more = cost.step_ns / cost.ideal_ns - 1
    say(f"peak         {format_bytes(peak_bytes)} without, {with_plan} with the plan")
    say(f"budget       {format_bytes(made.budget.memory_bytes)}{raised}")
    say(f"step         {format_ns(cost.ideal_ns)} ideal, {format_ns(cost.step_ns)} predicted")
    say(f"stall        {format_ns(cost.stall_ns)}, {more:.1%} of the ideal step")
    say(f"lower bound  {format_bound(cost.step_ns, cost.lower_bound_ns)}")
    for tier, moved in (("ssd", cost.ssd), ("host", cost.host)):
        if moved.to_tier_bytes or moved.to_gpu_bytes:
            say(
                f"{tier:<12} {format_bytes(moved.to_tier_bytes)} out, "
                f"{format_bytes(moved.to_gpu_bytes)} back, "
                f"{format_bytes(moved.dropped_bytes)} dropped in each step"
            )
    if made.actions:
        say(f"tensors      {len(made.tensors)} move, in {len(made.actions)} actions")
    else:
        say("tensors      none has to move: the step fits")
    sources = "; ".join(f"{name} {text}" for name, text in made.hardware.source.items())
    say(f"rates        {sources}")


def _name_next(output: str, trace: Trace) -> None:
    file = "PLAN" if output == STDIO else shlex.quote(output)
    if trace.info.fingerprint:
        say(f"\nnext: teraio run {file} {shlex.join(trace.info.command) or 'SCRIPT'}")
    else:
        say("\nthe trace has no fingerprint, so this plan cannot be run")
        say(f"next: teraio inspect {file}")
