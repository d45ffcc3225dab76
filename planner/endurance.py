"""What a plan's writes do to the SSDs: bytes by step and by day, and days to their rated limit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from teraio.planner.plan import Plan

_DAY_NS: Final = 86_400 * 10**9


@dataclass(frozen=True)
class Endurance:
    """Bytes that all drives together are written in a step and in a day of nothing but steps.

    `tbw_bytes` is what each of the `drives` is rated for; `days` is how long they last by it,
    None if the rating is not known or nothing is written.
    """

    step_bytes: int
    day_bytes: int
    drives: int
    tbw_bytes: int | None
    days: float | None


def endurance(plan: Plan) -> Endurance:
    """Return the wear of `plan`'s SSDs at its predicted step time.

    With W bytes written in a step of T ns, a day writes D = W x 86,400 x 10^9 / T bytes. N drives
    rated for B bytes each, written evenly as stripes are, last N x B / D days. The rating, "TBW"
    in data sheets, is of the JEDEC workload JESD219, which is harder on a drive than the large
    sequential writes of a plan. What file system and drive add to W is not counted.
    """
    ssd = plan.hardware.ssd
    written = plan.prediction.ssd.to_tier_bytes
    by_day = Fraction(written * _DAY_NS, max(plan.prediction.step_ns, 1))
    lasts = ssd.tbw_bytes is not None and written > 0
    return Endurance(
        step_bytes=written,
        day_bytes=int(by_day),
        drives=ssd.drives,
        tbw_bytes=ssd.tbw_bytes,
        days=float(ssd.drives * (ssd.tbw_bytes or 0) / by_day) if lasts else None,
    )
