"""What a run did, as the JSON object that `teraio run --report` writes."""

from __future__ import annotations

from typing import Any

from teraio.executor.counters import Counters
from teraio.planner.plan import Plan


def build_report(
    plan: Plan,
    counters: Counters,
    *,
    io_path: dict[str, str],
    memory: str,
    allocator: dict[str, int] | None,
    verified_steps: int,
) -> dict[str, Any]:
    """Return the report of a finished run; times in ns, sizes in bytes.

    `step_ns` and `peak_by_step` have one entry per step, the first of which holds the script's
    set-up. `peak_bytes` is what the executor accounted for: storages rounded to 512 B, and the
    recorded workspace of each op; `allocator` is what torch's counted, if it does.
    """
    return {
        "steps": len(counters.step_ns),
        "ideal_ns": plan.prediction.ideal_ns,
        "predicted_step_ns": plan.prediction.step_ns,
        "step_ns": counters.step_ns,
        "stall_ns": counters.stall_ns,
        "offloaded_bytes": counters.offloaded,
        "prefetched_bytes": counters.prefetched,
        "dropped_bytes": counters.dropped,
        "io_path": io_path,
        "rates": counters.speeds.rates(),
        "memory": memory,
        "peak_bytes": counters.peak_bytes,
        "peak_by_step": counters.peak_by_step,
        "allocator": allocator,
        "budget_bytes": plan.budget.memory_bytes,
        "over_budget_ops": counters.over_budget_ops,
        "out_of_memory": counters.out_of_memory,
        "planned_actions": counters.planned_actions,
        "executed_actions": counters.executed_actions,
        "unplanned_fetches": counters.unplanned_fetches,
        "unplanned_evictions": counters.unplanned_evictions,
        "divergences": counters.divergences,
        "failed_writes": counters.failed_writes,
        "errors": counters.errors,
        "verified_steps": verified_steps,
    }
