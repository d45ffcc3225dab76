"""The channels a plan may use: measured, given by the user, or assumed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from teraio.planner.fields import Fields, read_json
from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.planner.units import LARGEST
from teraio.profiler.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

ASSUMED: Final = Hardware(
    ssd=Ssd(read_bytes_per_s=6_700_000_000, write_bytes_per_s=6_500_000_000, latency_ns=20_000),
    host_link=HostLink(to_host_bytes_per_s=25_000_000_000, to_gpu_bytes_per_s=25_000_000_000),
    source={
        "ssd": "assumed: one PCIe 4.0 drive, 20 us",
        "host_link": "assumed: PCIe 4.0 x16",
    },
)
"""One PCIe 4.0 drive at its data sheet's rates (Samsung 990 PRO), and a PCIe 4.0 x16 link."""


def read_hardware(path: Path) -> Hardware:
    """Read what `teraio bench` measured.

    Raises InputMissingError if there is no such file and BadInputError if it is another kind of
    file or a rate in it is not positive.
    """
    hint = "measure the hardware with `teraio bench DIR -o hardware.json`"
    return hardware_from(read_json(path, str(path), what="hardware file", hint=hint))


def hardware_from(fields: Fields) -> Hardware:
    """Return the hardware that a JSON object describes; raises BadInputError."""
    ssd = fields.inner("ssd")
    link = fields.inner("host_link")
    return Hardware(
        ssd=Ssd(
            read_bytes_per_s=ssd.whole("read_bytes_per_s", least=1),
            write_bytes_per_s=ssd.whole("write_bytes_per_s", least=1),
            latency_ns=ssd.whole("latency_ns"),
            drives=ssd.whole("drives", least=1) if ssd.has("drives") else 1,
            tbw_bytes=ssd.whole("tbw_bytes", least=1) if ssd.has("tbw_bytes") else None,
        ),
        host_link=HostLink(
            to_host_bytes_per_s=link.whole("to_host_bytes_per_s", least=1),
            to_gpu_bytes_per_s=link.whole("to_gpu_bytes_per_s", least=1),
        ),
        source=fields.texts("source"),
    )


def with_rates(
    hardware: Hardware,
    *,
    ssd_read: int | None = None,
    ssd_write: int | None = None,
    host_link: int | None = None,
) -> Hardware:
    """Return `hardware` with the rates that are given, in bytes per second.

    Raises UsageError for a rate that is not positive.
    """
    for rate in (ssd_read, ssd_write, host_link):
        if rate is not None and rate <= 0:
            msg = f"a rate must be more than zero: {rate} bytes per second"
            raise UsageError(msg, hint="write a rate as `6.7GB/s`")
    ssd, link, source = hardware.ssd, hardware.host_link, dict(hardware.source)
    if ssd_read is not None:
        ssd = replace(ssd, read_bytes_per_s=ssd_read)
        source["ssd.read_bytes_per_s"] = "given"
    if ssd_write is not None:
        ssd = replace(ssd, write_bytes_per_s=ssd_write)
        source["ssd.write_bytes_per_s"] = "given"
    if host_link is not None:
        link = HostLink(to_host_bytes_per_s=host_link, to_gpu_bytes_per_s=host_link)
        source["host_link"] = "given"
    return Hardware(ssd, link, source)


def with_drives(hardware: Hardware, drives: int) -> Hardware:
    """Return `hardware` with `drives` times its SSDs: their rates add up, the latency stays.

    Raises UsageError unless `drives` is positive and the rates stay below 2^63 bytes per second.
    """
    if drives <= 0:
        msg = f"the number of SSDs must be more than zero: {drives}"
        raise UsageError(msg, hint="`--ssds 4` plans for four drives of the given rates")
    if drives == 1:
        return hardware
    ssd = hardware.ssd
    faster = replace(
        ssd,
        read_bytes_per_s=ssd.read_bytes_per_s * drives,
        write_bytes_per_s=ssd.write_bytes_per_s * drives,
        drives=ssd.drives * drives,
    )
    if max(faster.read_bytes_per_s, faster.write_bytes_per_s) > LARGEST:
        msg = f"{drives} SSDs would give more than {LARGEST} bytes per second"
        raise UsageError(msg, hint="`--ssds` is the number of drives")
    source = {
        key: f"{drives} x {how}" if key in _SSD_RATES else how
        for key, how in hardware.source.items()
    }
    return replace(hardware, ssd=faster, source=source)


def with_tbw(hardware: Hardware, tbw_bytes: int) -> Hardware:
    """Return `hardware` whose drives may each be written `tbw_bytes` in their life.

    Raises UsageError for a number that is not positive.
    """
    if tbw_bytes <= 0:
        msg = f"what may be written to a drive must be more than zero: {tbw_bytes} bytes"
        raise UsageError(msg, hint="the data sheet of a drive says its TBW, as `1200TB`")
    source = hardware.source | {"ssd.tbw_bytes": "given"}
    return replace(hardware, ssd=replace(hardware.ssd, tbw_bytes=tbw_bytes), source=source)


_SSD_RATES: Final = ("ssd", "ssd.read_bytes_per_s", "ssd.write_bytes_per_s")
