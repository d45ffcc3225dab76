"""How fast bytes really moved: bytes of each way over the time in which any of them moved."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from teraio.executor.transfer import Transfer

ENOUGH_BYTES: Final = 64 << 20
"""Fewer say more of latency and chance than of a rate."""

MOST_STEPS: Final = 16
"""Steps that are measured: enough for a rate, and no list grows for longer."""

MOST_NOTED: Final = 1 << 16
"""Transfers of one step that are noted: a script may go on without ever ending a step."""


class Speeds:
    """Takes note of transfers that are over, of those that know when they moved."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, str, Transfer]] = []
        self._bytes: dict[tuple[str, str], int] = defaultdict(int)
        self._busy_ns: dict[tuple[str, str], int] = defaultdict(int)
        self._steps = 0

    def note(self, tier: str, way: str, transfer: Transfer) -> None:
        """Take note of a transfer to or from a tier."""
        if self._steps < MOST_STEPS and len(self._noted) < MOST_NOTED:
            self._noted.append((tier, way, transfer))

    def end_step(self, *, counts: bool) -> None:
        """Count the transfers of a step, or forget them if it `counts` for nothing."""
        spans: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for tier, way, transfer in self._noted if counts else ():
            span = transfer.span()
            if span is not None:
                spans[tier, way].append(span)
                self._bytes[tier, way] += transfer.nbytes
        for key, found in spans.items():
            self._busy_ns[key] += covered(found)
        self._noted = []
        self._steps += counts

    def rates(self) -> dict[str, dict[str, int]]:
        """Return bytes per second by tier and way, of those with enough bytes to tell."""
        found: dict[str, dict[str, int]] = {}
        for (tier, way), nbytes in self._bytes.items():
            if nbytes >= ENOUGH_BYTES and self._busy_ns[tier, way]:
                rate = nbytes * 1_000_000_000 // self._busy_ns[tier, way]
                found.setdefault(tier, {})[way] = rate
        return found


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of intervals (begin, end)."""
    total, until = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
