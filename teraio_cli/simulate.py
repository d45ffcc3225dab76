"""`teraio simulate`: replay a plan against a trace in time."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from teraio.profiler.errors import UsageError
from teraio_cli.inputs import read_hashed
from teraio_cli.next_command import after_plan, named
from teraio_cli.outputs import STDIO, input_label, open_input, print_json, say, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from teraio.planner.plan import Plan
    from teraio.profiler.trace import Trace


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
    from teraio.planner.matching import require_match, require_sound
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
    require_sound(step, made)
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
    _name_next(trace, plan, recorded, made, given)


def _read_plan(source: str) -> Plan:
    from teraio.planner.plan_file import read_plan

    with open_input(source) as stream, text_of(stream) as text:
        return read_plan(text, name=input_label(source))


def _name_next(
    trace: str, plan: str, recorded: Trace, made: Plan, rates: Mapping[str, str | None]
) -> None:
    """Name what to do next; `rates` are the options that say what is not as in the plan."""
    if not any(rates.values()):
        otherwise = f"export {named(trace, 'TRACE')} --plan PLAN"
        info = recorded.info
        say(after_plan(plan, info.fingerprint, info.command, otherwise=otherwise))
        return
    from teraio_cli.plan_again import options_of, rates_again

    words = [*options_of(made), *rates_again(made.hardware, rates)]
    output = "plan.json" if Path(plan).name != "plan.json" else "new-plan.json"
    say("\nthe rates are not the plan's; a plan made for them may be faster")
    say(f"next: teraio plan {named(trace, 'TRACE')} {shlex.join(words)} -o {output}")
