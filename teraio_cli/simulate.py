"""`teraio simulate`: replay a plan against a trace in time."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from teraio.profiler.errors import UsageError
from teraio_cli.inputs import read_hashed
from teraio_cli.outputs import STDIO, input_label, open_input, print_json, say, text_of

if TYPE_CHECKING:
    from teraio.planner.plan import Plan


def simulate(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="The trace; `-` is stdin.")],
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan; `-` is stdin.")],
    hardware: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="What `teraio bench` measured, for the plan's rates."),
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
    ssds: Annotated[
        int, typer.Option(metavar="N", help="Replay with N times the SSDs that the rates are of.")
    ] = 1,
    bins: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Parts of the step to show.")
    ] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Replay a plan against a trace: step time, stalls by cause, memory and channel use.

    The trace must have the plan's ops and tensors; its times may be others. Rates that are not
    given are those of the plan, so other rates tell what the plan would cost on other drives.
    """
    from teraio.planner.matching import require_match
    from teraio.planner.simulate import simulate_actions
    from teraio.planner.step import load_step
    from teraio_cli.plan_options import hardware_of
    from teraio_cli.simulate_tables import print_simulation, summarise_simulation

    if trace == plan == STDIO:
        msg = "the trace and the plan cannot both be stdin"
        raise UsageError(msg, hint="name a file for one of them")
    recorded, sha256 = read_hashed(trace)
    made = _read_plan(plan)
    channels = hardware_of(
        hardware,
        ssd_read=ssd_read,
        ssd_write=ssd_write,
        host_link=host_link,
        ssds=ssds,
        base=made.hardware,
    )
    step = load_step(recorded)
    require_match(step, made)
    if sha256 != made.trace.sha256:
        say("note: the plan was made from another trace with the same ops and tensors\n")
    simulation = simulate_actions(step, channels, made.actions)
    summary = summarise_simulation(step, made, channels, simulation, bins)
    (print_json if as_json else print_simulation)(summary)
    given = {
        "--hardware": hardware,
        "--ssd-read": ssd_read,
        "--ssd-write": ssd_write,
        "--host-link": host_link,
        "--ssds": None if ssds == 1 else str(ssds),
    }
    rates = [word for option, text in given.items() if text for word in (option, text)]
    _name_next(trace, plan, made, rates)


def _read_plan(source: str) -> Plan:
    from teraio.planner.plan_file import read_plan

    with open_input(source) as stream, text_of(stream) as text:
        return read_plan(text, name=input_label(source))


def _name_next(trace: str, plan: str, made: Plan, rates: list[str]) -> None:
    """Name what to do next; `rates` are the options that say what is not as in the plan."""
    if not rates:
        say(f"\nnext: teraio run {'PLAN' if plan == STDIO else shlex.quote(plan)} SCRIPT")
        return
    file = "TRACE" if trace == STDIO else shlex.quote(trace)
    host = made.budget.host_bytes
    words = ["--memory", str(made.budget.memory_bytes)]
    words += ["--host-memory", str(host)] if host else []
    say("\nthe rates are not the plan's; a plan made for them may be faster")
    say(f"next: teraio plan {file} -o plan.json {shlex.join(words + rates)}")
