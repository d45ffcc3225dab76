"""`teraio bench`: measure what SSD folders and the host link give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from teraio_cli.option_types import IoPath, require_io
from teraio_cli.outputs import STDIO, open_output, require_output, say, text_of


def bench(
    folders: Annotated[list[str], typer.Argument(metavar="DIR...", help="SSD folders to measure.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="PATH", help="Where the result goes.")
    ] = STDIO,
    io: IoPath = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
) -> None:
    """Measure what SSD folders and the host link give.

    The result feeds `teraio plan --hardware`. It goes to stdout unless `-o` names a file.
    """
    require_output(output, force=force)
    require_io(io)
    from teraio.executor.bandwidth import measure
    from teraio.planner.fields import Fields
    from teraio.planner.hardware import hardware_from
    from teraio.planner.units import format_rate

    result = measure([Path(folder) for folder in folders], io=io)
    hardware = hardware_from(Fields(result, "hardware", "the measurement", ""))
    say(f"ssd read   {format_rate(hardware.ssd.read_bytes_per_s)}")
    say(f"ssd write  {format_rate(hardware.ssd.write_bytes_per_s)}")
    say(f"to host    {format_rate(hardware.host_link.to_host_bytes_per_s)}")
    say(f"to device  {format_rate(hardware.host_link.to_gpu_bytes_per_s)}")
    with open_output(output, force=force) as stream, text_of(stream) as text:
        text.write(json.dumps(result, indent=2) + "\n")
    if output == STDIO:
        say("\nnext: keep it with `-o hardware.json` for `teraio plan --hardware hardware.json`")
    else:
        say(f"\nnext: teraio plan TRACE --hardware {output} --memory 60% -o plan.json")
