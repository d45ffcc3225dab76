"""The options of `teraio plan` that lead to a plan like another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from teraio.planner.plan import Controls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from teraio.planner.plan import Hardware, Plan

_UNITS: Final = (("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 10**3), ("B/s", 1))
_RATES: Final = ("--ssd-read", "--ssd-write", "--host-link")


def options_of(plan: Plan) -> list[str]:
    """Return the options for a plan with the budget and the controls of `plan`."""
    budget, ruled, usual = plan.budget, plan.controls, Controls()
    pairs: list[tuple[str, object]] = [("--memory", budget.memory_bytes)]
    if budget.host_bytes:
        pairs += [("--host-memory", budget.host_bytes), ("--tiers", ",".join(ruled.tiers))]
    if budget.margin:
        pairs.append(("--margin", f"{budget.margin * 100:g}%"))
    if ruled.min_tensor_bytes != usual.min_tensor_bytes:
        pairs.append(("--min-tensor", ruled.min_tensor_bytes))
    if ruled.ssd_write_bytes is not None:
        pairs.append(("--ssd-writes", ruled.ssd_write_bytes))
    pairs += [("--keep", pattern) for pattern in ruled.keep]
    pairs += [("--never-ssd", pattern) for pattern in ruled.never_ssd]
    return [str(word) for pair in pairs for word in pair]


def rates_again(hardware: Hardware, given: Mapping[str, str | None]) -> list[str]:
    """Return the rate options `given`, and those for the rates of `hardware` beside them.

    A file with rates has them all. A host link that is faster one way than the other has no
    option.
    """
    words = [word for option, text in given.items() if text for word in (option, text)]
    if given.get("--hardware"):
        return words
    ssd, link = hardware.ssd, hardware.host_link
    both_ways = link.to_gpu_bytes_per_s == link.to_host_bytes_per_s
    known = {
        "--ssd-read": ssd.read_bytes_per_s,
        "--ssd-write": ssd.write_bytes_per_s,
        "--host-link": link.to_gpu_bytes_per_s if both_ways else None,
    }
    missing = [(option, known[option]) for option in _RATES if not given.get(option)]
    return words + [word for option, n in missing if n for word in (option, rate_text(n))]


def rate_text(bytes_per_s: int) -> str:
    """Return a rate so that it reads as just itself: `6.7GB/s`, `123456789B/s`."""
    for unit, scale in _UNITS:
        if bytes_per_s >= scale and bytes_per_s * 100 % scale == 0:
            return f"{bytes_per_s / scale:.2f}".rstrip("0").rstrip(".") + unit
    return f"{bytes_per_s}B/s"
