"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from teraio.profiler.errors import UsageError

TraceFile = Annotated[str, typer.Argument(metavar="TRACE", help="The trace; `-` is stdin.")]
Memory = Annotated[
    str,
    typer.Option(metavar="SIZE", help="Device memory, as 24GiB or as a share of the peak, 60%."),
]
HostMemory = Annotated[str, typer.Option(metavar="SIZE", help="Host memory that tensors may take.")]
Tiers = Annotated[
    str | None,
    typer.Option(
        "--tiers",  # some versions of typer take a metavar that equals the name for the option
        metavar="TIERS",
        help="Where tensors may go: ssd, host or ssd,host. Default ssd, and host if "
        "--host-memory gives some.",
    ),
]
HardwareFile = Annotated[
    str | None, typer.Option("--hardware", metavar="FILE", help="What `teraio bench` measured.")
]
SsdRead = Annotated[
    str | None, typer.Option(metavar="RATE", help="What the SSDs read, as 6.7GB/s.")
]
SsdWrite = Annotated[str | None, typer.Option(metavar="RATE", help="What the SSDs write.")]
HostLink = Annotated[
    str | None, typer.Option(metavar="RATE", help="What the host link gives each way.")
]
Ssds = Annotated[
    int, typer.Option(metavar="N", help="Plan for N times the SSDs that the rates are of.")
]
Tbw = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What one SSD may be written, as 1200TB.")
]
SsdWrites = Annotated[
    str | None, typer.Option(metavar="SIZE", help="The most a step may write to the SSDs.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="REGEX", help="Tensors that stay on the device; may be repeated."),
]
NeverSsd = Annotated[
    list[str] | None,
    typer.Option(metavar="REGEX", help="Tensors for host memory only; may be repeated."),
]
MinTensor = Annotated[str, typer.Option(metavar="SIZE", help="Smaller tensors stay on the device.")]
Margin = Annotated[str, typer.Option(metavar="PCT", help="Share of the memory to leave free.")]
OrMinimum = Annotated[
    bool, typer.Option("--or-minimum", help="Take the least possible memory if that is more.")
]
PolicyName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How to search: auto, greedy, fluid, ilp, or as others do: teraio2025, g10, "
        "zero-offload, zero-infinity, ssdtrain, flexgen, lru, keep.",
    ),
]
TimeLimit = Annotated[
    float, typer.Option(metavar="S", help="Seconds that a policy with a solver may take.")
]
Plot = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Draw it too: a .png, .svg or .pdf (needs matplotlib)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]

IO_TIMEOUT_S: Final = 300
"""Ten times the default timeout of the Linux kernel for a request to an NVMe drive."""

IoPath = Annotated[str, typer.Option(metavar="auto|gds|posix", help="How bytes reach the SSDs.")]


def require_io(io: str) -> None:
    """Raise UsageError for an unknown `--io`."""
    if io not in ("auto", "gds", "posix"):
        msg = f"unknown `--io`: `{io}`"
        raise UsageError(msg, hint="one of `auto`, `gds`, `posix`")
