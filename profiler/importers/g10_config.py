"""The configuration of a G10 run: what hardware its planner was told to plan for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from teraio.profiler.importers.lines import MOST_BYTES

if TYPE_CHECKING:
    from teraio.profiler.importers.lines import Lines

FREQUENCY_HZ: Final = Fraction(1_200_000_000)
"""The frequency of G10's own configurations, whose cycles are times at it."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)


@dataclass(frozen=True)
class G10Config:
    """The figures of a configuration that are used here; None where it has none.

    In G10's program a GB of memory is 2^30 bytes and a GB/s 10^9 bytes per second.
    """

    frequency_hz: Fraction = FREQUENCY_HZ
    gpu_bytes: int | None = None
    host_bytes: int | None = None
    gpu_link_bytes_per_s: int | None = None
    host_link_bytes_per_s: int | None = None
    ssd_bytes_per_s: int | None = None
    ssd_read_latency_ns: int | None = None
    ssd_write_latency_ns: int | None = None


_FIELDS: Final = {
    "GPU_frequency_GHz": ("frequency_hz", 10**9),
    "GPU_memory_size_GB": ("gpu_bytes", 1 << 30),
    "CPU_memory_line_GB": ("host_bytes", 1 << 30),
    "GPU_PCIe_bandwidth_GBps": ("gpu_link_bytes_per_s", 10**9),
    "CPU_PCIe_bandwidth_GBps": ("host_link_bytes_per_s", 10**9),
    "SSD_PCIe_bandwidth_GBps": ("ssd_bytes_per_s", 10**9),
    "SSD_read_latency_us": ("ssd_read_latency_ns", 1000),
    "SSD_write_latency_us": ("ssd_write_latency_ns", 1000),
}
"""Each key with its field here, and the bytes, Hz or ns of its unit."""

_MAY_BE_ZERO: Final = ("host_bytes", "ssd_read_latency_ns", "ssd_write_latency_ns")


def read_config(file: Lines | None) -> G10Config:
    """Return the figures of a configuration, or G10's frequency alone if there is none.

    To G10 a negative figure is one that is not set. Raises BadInputError, which names
    the file and the line, for a line that is no key and value, a key that is there twice, and a
    figure that is no number, is zero where that has no meaning, or is too large.
    """
    values: dict[str, int | Fraction] = {}
    for index, line in enumerate(file.lines if file else ()):
        words = line.partition("#")[0].split()
        if not words or file is None:
            continue
        field, unit = _FIELDS.get(words[0], ("", 0))
        if not field:
            continue
        if field in values:
            file.fail(index, f"`{words[0]}` is there twice")
        if len(words) != 2 or not _NUMBER.fullmatch(words[1]):
            file.unlike(index, f"`{words[0]}` and a number")
        value = Fraction(words[1]) * unit
        if value < 0:
            continue
        if value > MOST_BYTES or (value < 1 and field not in _MAY_BE_ZERO):
            file.unlike(index, f"`{words[0]}` and a number in its range")
        values[field] = value if field == "frequency_hz" else int(value)
    return G10Config(**values)  # type: ignore[arg-type]
