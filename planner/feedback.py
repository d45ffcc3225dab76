"""What a run under a plan measured, taken back into the next plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from teraio.planner.fields import Fields, read_json
from teraio.planner.plan import HOST, SSD, Hardware

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TO_TIER, TO_GPU = "to_tier_bytes_per_s", "to_gpu_bytes_per_s"

SLOW: Final = 0.9
"""A way is slow where a run has less than this share of what its plan counted on."""


class Measured(NamedTuple):
    """One way's rate in a run beside that of its plan, in bytes per second.

    `source` is how the plan's was obtained.
    """

    tier: str
    way: str
    measured: int
    planned: int
    source: str

    @property
    def is_slow(self) -> bool:
        """Whether it was so much slower that the prediction cannot hold."""
        return self.measured < SLOW * self.planned


def beside(rates: Mapping[str, Mapping[str, int]], hardware: Hardware) -> Iterator[Measured]:
    """Yield what a run measured beside what `hardware` says.

    What goes to an SSD goes over the host link too: the slower of them is what a plan counts on.
    """
    ssd, link = hardware.ssd, hardware.host_link
    to_host = link.to_host_bytes_per_s, "host_link.to_host_bytes_per_s"
    to_gpu = link.to_gpu_bytes_per_s, "host_link.to_gpu_bytes_per_s"
    planned = {
        (SSD, TO_TIER): min((ssd.write_bytes_per_s, "ssd.write_bytes_per_s"), to_host),
        (SSD, TO_GPU): min((ssd.read_bytes_per_s, "ssd.read_bytes_per_s"), to_gpu),
        (HOST, TO_TIER): to_host,
        (HOST, TO_GPU): to_gpu,
    }
    for (tier, way), (expected, key) in planned.items():
        if way in rates.get(tier, {}):
            source = hardware.source.get(key) or hardware.source.get(key.partition(".")[0], "")
            yield Measured(tier, way, rates[tier][way], expected, source)


def read_rates(path: Path) -> dict[str, dict[str, int]]:
    """Return the rates in a run's report, by tier and way, in bytes per second.

    Raises InputMissingError if there is no such file, and BadInputError if it is another kind of
    file or holds no rate.
    """
    hint = "a report is what `teraio run --report FILE` writes"
    report = read_json(path, str(path), what="report", hint=hint)
    rates = report.inner("rates")
    found = {
        tier: {way: of.whole(way, least=1) for way in (TO_TIER, TO_GPU) if of.has(way)}
        for tier, of in _tiers(rates)
    }
    if not any(found.values()):
        rates.fail("no rate was measured: the run moved too little after its second step")
    return found


def _tiers(rates: Fields) -> Iterator[tuple[str, Fields]]:
    for tier in (SSD, HOST):
        if rates.has(tier):
            yield tier, rates.inner(tier)


def with_measured(
    hardware: Hardware, rates: Mapping[str, Mapping[str, int]], source: str
) -> Hardware:
    """Return `hardware` with the rates that a run measured; `source` names its report."""
    ssd, link = rates.get(SSD, {}), rates.get(HOST, {})
    measured = {
        "ssd.write_bytes_per_s": ssd.get(TO_TIER),
        "ssd.read_bytes_per_s": ssd.get(TO_GPU),
        "host_link.to_host_bytes_per_s": link.get(TO_TIER),
        "host_link.to_gpu_bytes_per_s": link.get(TO_GPU),
    }
    found = {key: rate for key, rate in measured.items() if rate is not None}
    return Hardware(
        replace(hardware.ssd, **_fields_of("ssd.", found)),
        replace(hardware.host_link, **_fields_of("host_link.", found)),
        hardware.source | dict.fromkeys(found, f"measured in {source}"),
    )


def _fields_of(channel: str, rates: Mapping[str, int]) -> dict[str, int]:
    return {key.removeprefix(channel): r for key, r in rates.items() if key.startswith(channel)}
