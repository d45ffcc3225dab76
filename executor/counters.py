"""What a run has done so far, in plain numbers; the report is made from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns

from teraio.executor.speeds import Speeds
from teraio.executor.transfer import Transfer
from teraio.planner.feedback import TO_GPU, TO_TIER


@dataclass
class Counters:
    """Bytes by tier, waits in ns by cause, actions and surprises."""

    offloaded: dict[str, int] = field(default_factory=dict)
    prefetched: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    stall_ns: dict[str, int] = field(
        default_factory=lambda: {"late_prefetch": 0, "unplanned_fetch": 0, "memory": 0}
    )
    step_ns: list[int] = field(default_factory=list)
    peak_bytes: int = 0
    peak_by_step: list[int] = field(default_factory=list)
    over_budget_ops: int = 0
    out_of_memory: int = 0
    planned_actions: int = 0
    executed_actions: int = 0
    unplanned_fetches: int = 0
    unplanned_evictions: int = 0
    speeds: Speeds = field(default_factory=Speeds)
    divergences: list[str] = field(default_factory=list)
    failed_writes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def went_out(self, tier: str, transfer: Transfer) -> None:
        """Count what was written to a tier."""
        add(self.offloaded, tier, transfer.nbytes)
        self.speeds.note(tier, TO_TIER, transfer)

    def came_back(self, tier: str, transfer: Transfer) -> None:
        """Count what was read from a tier."""
        add(self.prefetched, tier, transfer.nbytes)
        self.speeds.note(tier, TO_GPU, transfer)

    @contextmanager
    def stalled(self, cause: str) -> Iterator[None]:
        """Add the time spent inside to a cause."""
        begun = perf_counter_ns()
        try:
            yield
        finally:
            self.stall_ns[cause] += perf_counter_ns() - begun


def add(totals: dict[str, int], tier: str, nbytes: int) -> None:
    """Add bytes to a tier's total."""
    totals[tier] = totals.get(tier, 0) + nbytes
