"""`teraio import`: traces of other tools, as traces of one step."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from teraio.profiler.errors import InfeasibleError, UsageError
from teraio_cli.outputs import (
    STDIO,
    input_label,
    open_input,
    open_output,
    require_output,
    say,
)

if TYPE_CHECKING:
    from teraio.planner.step import Step
    from teraio.profiler.importers.g10_files import G10Files
    from teraio.profiler.trace import Trace

_FACTOR: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)

import_ = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Output = Annotated[
    str, typer.Option("-o", "--output", metavar="PATH", help="The trace; `-` is stdout.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]


@import_.callback()
def formats() -> None:
    """Turn another tool's trace into one of a single step.

    Such a trace can be inspected, planned for and simulated. It has no fingerprint of a program,
    so its plans cannot be run.
    """


@import_.command()
def g10(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="G10's `statistics`, the folder around it, or a .tar.gz of that."
        ),
    ],
    output: Output = "trace.parquet",
    hardware: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write what `teraio plan --hardware` reads here."),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write G10's own plan here.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Device memory for G10's own plan, if not the run's."),
    ] = None,
    force: Force = False,
) -> None:
    """Import what G10's program writes for a model.

    The run's configuration, `NAME.config` beside the folder `NAME`, gives the GPU's frequency
    and the hardware.
    """
    outputs = [output, *(path for path in (hardware, plan) if path is not None)]
    _require_outputs(outputs, force=force, inputs=[source])
    if memory and not plan:
        msg = "`--memory` is for G10's own plan"
        raise UsageError(msg, hint="write the plan with `--plan g10-plan.json`")
    from teraio.planner.step import load_step
    from teraio.profiler.importers.g10 import read_g10

    files = _find(source)
    _require_outputs(outputs, force=force, inputs=_read_of(files))
    trace = read_g10(files)
    step = load_step(trace)
    contents = {output: _packed(trace)}
    if hardware:
        contents[hardware] = _hardware_file(files)
    if plan:
        sha256 = hashlib.sha256(contents[output]).hexdigest()
        try:
            contents[plan] = _own_plan(trace, step, files, sha256, memory)
        except InfeasibleError:
            _write_all(contents, force=force)
            say(f"wrote {', '.join(f'`{path}`' for path in contents)}, and no plan")
            raise
    _write_all(contents, force=force)
    _report(step)
    _name_next(output, hardware, files)


def _write_all(contents: dict[str, bytes], *, force: bool) -> None:
    for path, data in contents.items():
        _write(path, data, force=force)


@import_.command()
def teraio(
    source: Annotated[
        str,
        typer.Argument(metavar="IN", help="A `semantics.in`, plain or .gz; `-` is stdin."),
    ],
    output: Output = "trace.parquet",
    rescale: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Scale all times so that the step takes this, as 1.5s."),
    ] = None,
    speed_up: Annotated[
        str | None, typer.Option(metavar="FACTOR", help="Divide all times by this.")
    ] = None,
    force: Force = False,
) -> None:
    """Import a `semantics.in`, the input of TERAIO's own planner.

    Times of kernels that were recorded while tensors were swapped on demand contain the
    swapping: scale them.
    """
    _require_outputs([output], force=force, inputs=[source])
    if rescale is not None and speed_up is not None:
        msg = "`--rescale` and `--speed-up` exclude each other"
        raise UsageError(msg, hint="leave one of them out")
    from teraio.planner.step import load_step
    from teraio.planner.units import parse_time
    from teraio.profiler.importers.teraio import read_semantics, trace_of

    step_ns = None if rescale is None else parse_time(rescale)
    factor = Fraction(1) if speed_up is None else parse_factor(speed_up)
    with open_input(source) as stream:
        semantics = read_semantics(stream, name=input_label(source))
    trace = trace_of(semantics, step_ns=step_ns, speed_up=factor)
    _write(output, _packed(trace), force=force)
    step = load_step(trace)
    _report(step)
    elsewhere = len(semantics.ids) - len(step.tensors)
    if elsewhere:
        say(f"left out {elsewhere} tensors that are never on the device")
    say(f"\nnext: teraio plan {_file(output)} --memory 60% -o plan.json")


def parse_factor(text: str) -> Fraction:
    """Return the number that `text` is, above zero; raises UsageError if it is none."""
    factor = Fraction(text) if _FACTOR.fullmatch(text) else Fraction(0)
    if not factor:
        msg = f"not a factor: `{text}`"
        raise UsageError(msg, hint="write a number above zero, as `20` or `2.5`")
    return factor


def _require_outputs(paths: list[str], *, force: bool, inputs: list[str]) -> None:
    for path in paths:
        require_output(path, force=force, inputs=inputs)
    if len({path if path == STDIO else str(Path(path).resolve()) for path in paths}) < len(paths):
        msg = f"two outputs are to go to one place: {', '.join(f'`{path}`' for path in paths)}"
        raise UsageError(msg, hint="name a file for each")


def _find(source: str) -> G10Files:
    from teraio.profiler.importers.g10_files import find_g10

    if source != STDIO:
        return find_g10(Path(source))
    with open_input(source) as stream:
        return find_g10(stream, name=input_label(source))


def _read_of(files: G10Files) -> list[str]:
    """Return the files that were read of a folder."""
    read = (files.tensors, files.interval, files.kernels, files.guide, files.config)
    return [lines.label for lines in read if lines is not None]


def _packed(trace: Trace) -> bytes:
    from teraio.profiler.trace import write_trace

    sink = io.BytesIO()
    write_trace(trace, sink)
    return sink.getvalue()


def _hardware_file(files: G10Files) -> bytes:
    from teraio.planner.g10_run import hardware_of

    return (json.dumps(asdict(hardware_of(files)), indent=2) + "\n").encode()


def _own_plan(trace: Trace, step: Step, files: G10Files, sha256: str, memory: str | None) -> bytes:
    from teraio.planner.g10_run import g10_plan, hardware_of, memory_of
    from teraio.planner.plan_file import write_plan
    from teraio.planner.step import peak
    from teraio.planner.units import parse_memory

    memory_bytes, host_bytes = memory_of(files)
    made = g10_plan(
        trace,
        files,
        sha256=sha256,
        memory_bytes=parse_memory(memory, peak(step)) if memory else memory_bytes,
        host_bytes=host_bytes,
        hardware=hardware_of(files),
    )
    text = io.StringIO()
    write_plan(made, text)
    return text.getvalue().encode()


def _write(path: str, data: bytes, *, force: bool) -> None:
    with open_output(path, force=force) as stream:
        stream.write(data)


def _report(step: Step) -> None:
    from teraio.planner.step import peak
    from teraio.planner.units import format_bytes, format_ns

    outliving = [tensor for tensor in step.tensors if tensor.persistent]
    held = format_bytes(sum(tensor.size for tensor in outliving))
    say(f"ops      {len(step.ops)}")
    say(f"tensors  {len(step.tensors)}, of which {len(outliving)} outlive the step, {held}")
    say(f"step     {format_ns(step.period_ns)} ideal")
    say(f"peak     {format_bytes(peak(step))}")


def _name_next(output: str, hardware: str | None, files: G10Files) -> None:
    from teraio.profiler.importers.g10_config import read_config

    config = read_config(files.config)
    words = ["teraio plan", _file(output)]
    if hardware:
        words += ["--hardware", shlex.quote(hardware)]
    words += ["--memory", _size(config.gpu_bytes) if config.gpu_bytes else "60%"]
    if config.host_bytes:
        words += ["--host-memory", _size(config.host_bytes)]
    say(f"\nnext: {' '.join(words)} -o plan.json")


def _file(output: str) -> str:
    return "TRACE" if output == STDIO else shlex.quote(output)


def _size(nbytes: int) -> str:
    gib, rest = divmod(nbytes, 1 << 30)
    return str(nbytes) if rest else f"{gib}GiB"
