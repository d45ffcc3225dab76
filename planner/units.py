"""Sizes, rates and times as people write and read them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from teraio.profiler.errors import UsageError

LARGEST: Final = 2**63 - 1
"""The largest number of bytes (or bytes per second) that is accepted."""

_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBER: Final = re.compile(r"\s*(-?\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)\s*", re.ASCII)
_BARE_LEAST: Final = 1024
"""A smaller number of bytes without a unit is a slip, where it is the size of a memory."""

_SIZE_FORMS: Final = "write a size as `24GiB`, `24GB`, `512MiB` or a number of bytes"
_TIMES: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TIME_FORMS: Final = "write a time as `1.5s` or `20ms`"
_RATE_FORMS: Final = "write a rate as `6.7GB/s` or `900MiB/s`"


def parse_size(text: str) -> int:
    """Return the bytes that `text` names, as in `24GiB`, `24GB`, `1.5GiB` or `4096`.

    Raises UsageError for an unknown unit and for a size that is not positive or is too large.
    """
    return _positive(text, _quantity(text, _SIZE_FORMS), "size", _SIZE_FORMS)


def parse_limit(text: str) -> int:
    """Return the bytes that `text` names, as `parse_size` does, or 0 for `0`."""
    return 0 if _quantity(text, _SIZE_FORMS) == 0 else parse_size(text)


def parse_rate(text: str) -> int:
    """Return the bytes per second that `text` names, as in `6.7GB/s`.

    Raises UsageError for an unknown unit and for a rate that is not positive or is too large.
    """
    number, slash, second = text.rpartition("/")
    if not slash or second.strip() != "s":
        msg = f"not a rate: `{text}`"
        raise UsageError(msg, hint=_RATE_FORMS)
    return _positive(text, _quantity(number, _RATE_FORMS), "rate", _RATE_FORMS)


def parse_time(text: str) -> int:
    """Return the ns that `text` names, as in `1.5s`, `20ms`, `30us` or `400ns`.

    Raises UsageError for an unknown unit and for a time that is not positive or is too long.
    """
    match = _NUMBER.fullmatch(text)
    scale = _TIMES.get(match[2]) if match else None
    if match is None or scale is None:
        msg = f"not a time: `{text}`"
        raise UsageError(msg, hint=_TIME_FORMS)
    ns = int(Fraction(match[1]) * scale)
    if not 0 < ns <= LARGEST:
        msg = f"a time must be more than zero and at most {LARGEST} ns: `{text}`"
        raise UsageError(msg, hint=_TIME_FORMS)
    return ns


def parse_memory(text: str, peak_bytes: int) -> int:
    """Return the bytes that `text` names: a size, or a share of the trace's peak such as `60%`.

    A share is rounded down. Raises UsageError as `parse_size` does, and for a number below 1024
    without a unit.
    """
    forms = f"{_SIZE_FORMS}, or a share of the trace's peak as `60%`"
    if not text.rstrip().endswith("%"):
        require_unit(text, _BARE_LEAST, "24GiB", or_else=", or is a share, as `60%`")
        return _positive(text, _quantity(text, forms), "size", forms)
    share = _quantity(text.rstrip()[:-1], forms, bare=True)
    return _positive(text, share * peak_bytes / 100, "size", forms)


def parse_written(text: str) -> int:
    """Return the bytes that a drive may be written, as in `1200TB`.

    Raises UsageError as `parse_size` does, and for a number below 10^9 without a unit.
    """
    require_unit(text, 10**9, "1200TB")
    return parse_size(text)


def require_unit(text: str, least: int, example: str, *, or_else: str = "") -> None:
    """Raise UsageError for a number above zero and below `least` that has no unit.

    The hint shows an `example`, and what else could have been meant.
    """
    match = _NUMBER.fullmatch(text)
    if match and not match[2] and 0 < Fraction(match[1]) < least:
        msg = f"`{text}` has no unit, and would be {text.strip()} bytes"
        raise UsageError(msg, hint=f"a size needs a unit, as `{example}`{or_else}")


def format_bytes(nbytes: int) -> str:
    """Return bytes in binary units: `1.25 GiB`, `512 B`."""
    return _scaled(nbytes, (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)), "B")


def format_written(nbytes: int) -> str:
    """Return bytes in decimal units, as the endurance of drives is given: `1.20 TB`."""
    return _scaled(nbytes, (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)), "B")


def format_rate(bytes_per_s: int) -> str:
    """Return a rate in decimal units, as drives are sold: `6.70 GB/s`."""
    return _scaled(bytes_per_s, (("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 10**3)), "B/s")


def format_ns(ns: int) -> str:
    """Return a time: `1.234 s`, `12.3 ms`, `4.5 us`, `678 ns`."""
    if abs(ns) >= 10**9:
        return f"{ns / 10**9:.3f} s"
    if abs(ns) >= 10**6:
        return f"{ns / 10**6:.1f} ms"
    if abs(ns) >= 10**3:
        return f"{ns / 10**3:.1f} us"
    return f"{ns} ns"


def _quantity(text: str, forms: str, *, bare: bool = False) -> Fraction:
    match = _NUMBER.fullmatch(text)
    if match is None:
        msg = f"not a number with a unit: `{text}`"
        raise UsageError(msg, hint=forms)
    number, unit = match.groups()
    if unit.endswith("b"):
        msg = f"unknown unit `{unit}` in `{text}`"
        raise UsageError(msg, hint=f"bits? write bytes as `{unit[:-1]}B`; {forms}")
    scale = _UNITS.get(unit.lower())
    if scale is None or (bare and unit):
        msg = f"unknown unit `{unit}` in `{text}`"
        raise UsageError(msg, hint=forms)
    return Fraction(number) * scale


def _positive(text: str, value: Fraction, what: str, forms: str) -> int:
    whole = int(value)
    if whole <= 0:
        msg = f"a {what} must be more than zero: `{text}`"
        raise UsageError(msg, hint=forms)
    if whole > LARGEST:
        msg = f"a {what} must be at most {LARGEST} bytes: `{text}`"
        raise UsageError(msg, hint=forms)
    return whole


def _scaled(value: int, scales: tuple[tuple[str, int], ...], smallest: str) -> str:
    for unit, scale in scales:
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value} {smallest}"
