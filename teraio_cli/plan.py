"""`teraio plan`: decide what moves where and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from teraio.profiler.errors import SolverMissingError, UsageError
from teraio_cli.inputs import read_hashed
from teraio_cli.next_command import after_plan, words_again
from teraio_cli.option_types import (
    HardwareFile,
    HostLink,
    HostMemory,
    Keep,
    Margin,
    Memory,
    MinTensor,
    NeverSsd,
    OrMinimum,
    PolicyName,
    SsdRead,
    Ssds,
    SsdWrite,
    SsdWrites,
    Tbw,
    Tiers,
    TimeLimit,
    TraceFile,
)
from teraio_cli.outputs import (
    STDIO,
    open_output,
    print_json,
    require_output,
    say,
    text_of,
)

if TYPE_CHECKING:
    from teraio.planner.plan import Plan
    from teraio.planner.step import Step
    from teraio.profiler.trace import Trace

_TOP: Final = 10
"""How many tensors and actions the summary lists, as `teraio inspect` does."""


def plan(
    trace: TraceFile,
    memory: Memory,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="The plan; `-` is stdout. Default plan.json, or none with --explain.",
        ),
    ] = None,
    host_memory: HostMemory = "0",
    tiers: Tiers = None,
    hardware: HardwareFile = None,
    feedback: Annotated[
        str | None,
        typer.Option(metavar="REPORT", help="Take the rates that a run measured."),
    ] = None,
    ssd_read: SsdRead = None,
    ssd_write: SsdWrite = None,
    host_link: HostLink = None,
    ssds: Ssds = 1,
    tbw: Tbw = None,
    ssd_writes: SsdWrites = None,
    keep: Keep = None,
    never_ssd: NeverSsd = None,
    min_tensor: MinTensor = "1MiB",
    margin: Margin = "0%",
    or_minimum: OrMinimum = False,
    policy: PolicyName = "auto",
    time_limit: TimeLimit = 60.0,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="TENSOR", help="Show why this tensor (id, name or REGEX) moves or stays."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary or the explanation as JSON.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
) -> None:
    """Decide what moves where and when, for a memory budget.

    If the budget cannot be met, the error says what the least possible memory is and which op
    sets it. REGEX is searched for in names as `teraio inspect` shows them, and in KIND:NAME, as
    in `^optimizer_state:`.
    """
    from teraio.planner.explain import find_tensor
    from teraio.planner.make import make_plan
    from teraio.planner.step import load_step, peak
    from teraio.planner.units import parse_limit, parse_memory
    from teraio_cli.plan_options import controls_of, hardware_of, parse_share
    from teraio_cli.plan_report import report, warn_of_controls

    output = _output(output, prints=as_json or explain is not None, explains=explain is not None)
    channels = hardware_of(
        hardware, feedback=feedback, ssd_read=ssd_read, ssd_write=ssd_write,
        host_link=host_link, ssds=ssds, tbw=tbw,
    )  # fmt: skip
    host_bytes = parse_limit(host_memory)
    controls = controls_of(
        tiers=tiers, host_bytes=host_bytes, keep=keep or (), never_ssd=never_ssd or (),
        min_tensor=min_tensor, ssd_writes=ssd_writes,
    )  # fmt: skip
    recorded, sha256 = read_hashed(trace)
    step = load_step(recorded)
    peak_bytes = peak(step)
    memory_bytes = parse_memory(memory, peak_bytes)
    warn_of_controls(step, controls, host_bytes)
    tensor = None if explain is None else find_tensor(step, explain)
    if output is not None:
        require_output(output, force=force, inputs=(trace, hardware, feedback))
    made = make_plan(
        recorded,
        sha256=sha256,
        memory_bytes=memory_bytes,
        host_bytes=host_bytes,
        hardware=channels,
        policy=policy,
        or_minimum=or_minimum,
        margin=parse_share(margin),
        controls=controls,
        time_limit_s=time_limit,
        step=step,
    )
    if output is not None:
        _write(made, output, force=force)
    report(made, step, peak_bytes, memory_bytes)
    _print(made, step, tensor, as_json=as_json)
    _name_next(trace, output, recorded)
    _require_solver(made)


def _output(named: str | None, *, prints: bool, explains: bool) -> str | None:
    """Return where the plan goes, None if nowhere."""
    if named == STDIO and prints:
        msg = "the plan and what is to be printed cannot both go to stdout"
        raise UsageError(msg, hint="name a file with `-o`")
    return named if named is not None or explains else "plan.json"


def _write(made: Plan, output: str, *, force: bool) -> None:
    from teraio.planner.plan_file import write_plan

    with open_output(output, force=force) as stream, text_of(stream) as text:
        write_plan(made, text)


def _print(made: Plan, step: Step, tensor: int | None, *, as_json: bool) -> None:
    """Print the explanation of a tensor or the plan's summary, as far as wanted, on stdout."""
    from teraio.planner.explain import explain
    from teraio_cli.explain_tables import print_explanation
    from teraio_cli.plan_summary import summarise_plan

    if tensor is not None:
        say("")
        print_explanation(explain(step, made, tensor), as_json=as_json)
    elif as_json:
        print_json(summarise_plan(made, _TOP))


def _require_solver(made: Plan) -> None:
    """End with an error if the plan was to be found with a solver and there is none."""
    from teraio.planner.policies.ilp import NO_SOLVER

    if made.policy.status.startswith(NO_SOLVER):
        raise SolverMissingError(made.policy.status, hint="HiGHS comes with `pip install highspy`")


def _name_next(source: str, output: str | None, trace: Trace) -> None:
    if output is None:
        again = words_again(source, ("--explain", "--json", "-o", "--output"))
        say(f"\nno plan was written\nnext: teraio plan {again} -o plan.json")
        return
    say(after_plan(output, trace.info.fingerprint, trace.info.command))
