"""What the options of the commands that make plans mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from teraio.planner.plan import HOST, SSD, Controls
from teraio.profiler.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.plan import Hardware

_SURE_SHARE: Final = 0.01
"""From 1 % on a percentage may be without its sign."""

_TIERS: Final = {SSD: (SSD,), HOST: (HOST,), "ssd,host": (SSD, HOST), "host,ssd": (SSD, HOST)}


def hardware_of(
    file: str | None,
    *,
    feedback: str | None = None,
    ssd_read: str | None = None,
    ssd_write: str | None = None,
    host_link: str | None = None,
    ssds: int = 1,
    tbw: str | None = None,
    base: Hardware | None = None,
) -> Hardware:
    """Return the hardware that the options describe.

    It is that of the file, or `base` if there is none (by default what is assumed), with the
    rates that the run of the report `feedback` measured, then those that are given, times `ssds`
    drives. Raises what `read_hardware`, `read_rates`, `with_rates`, `with_drives` and the parsers
    raise.
    """
    from teraio.planner.feedback import read_rates, with_measured
    from teraio.planner.hardware import ASSUMED, read_hardware, with_drives, with_rates, with_tbw
    from teraio.planner.units import parse_rate, parse_written

    def rate(text: str | None) -> int | None:
        return None if text is None else parse_rate(text)

    first = read_hardware(Path(file)) if file else base or ASSUMED
    if feedback is not None:
        first = with_measured(first, read_rates(Path(feedback)), feedback)
    one = with_rates(
        first,
        ssd_read=rate(ssd_read),
        ssd_write=rate(ssd_write),
        host_link=rate(host_link),
    )
    every = with_drives(one, ssds)
    return every if tbw is None else with_tbw(every, parse_written(tbw))


def controls_of(
    *,
    tiers: str | None,
    host_bytes: int,
    keep: Sequence[str],
    never_ssd: Sequence[str],
    min_tensor: str,
    ssd_writes: str | None,
) -> Controls:
    """Return the controls that the options describe.

    Raises UsageError for tiers that are unknown or host memory that is named and not given, and
    what `parse_limit` raises.
    """
    from teraio.planner.units import parse_limit

    return Controls(
        tiers=_tiers(tiers, host_bytes),
        keep=tuple(keep),
        never_ssd=tuple(never_ssd),
        min_tensor_bytes=parse_limit(min_tensor),
        ssd_write_bytes=None if ssd_writes is None else parse_limit(ssd_writes),
    )


def _tiers(text: str | None, host_bytes: int) -> tuple[str, ...]:
    if text is None:
        return (SSD, HOST)
    tiers = _TIERS.get(text.replace(" ", ""))
    if tiers is None:
        msg = f"not tiers: `{text}`"
        raise UsageError(msg, hint="write `ssd`, `host` or `ssd,host`")
    if HOST in tiers and not host_bytes:
        msg = f"`--tiers {text}` needs host memory, and there is none"
        raise UsageError(msg, hint="say how much tensors may take, as `--host-memory 32GiB`")
    return tiers


def parse_share(text: str) -> float:
    """Return the share that `5%` or `5` names, from 0 to less than 1.

    Raises UsageError for anything else, and for a number below 1 without a `%`: that may be a
    share or a percentage.
    """
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        msg = f"not a percentage from 0 to less than 100: `{text}`"
        raise UsageError(msg, hint="write a share as `5%`")
    if 0 < share < _SURE_SHARE and not text.endswith("%"):
        msg = f"`{text}` may be a share or a percentage"
        raise UsageError(msg, hint=f"write `{float(text):g}%` or `{float(text) * 100:g}%`")
    return share
