"""Our policy against TERAIO's and G10's on every sample trace, over budgets and bandwidths.

    python benchmarks/policies.py            # writes benchmarks/results/policies.{json,svg}

Budgets go from 30 to 100 % of each trace's peak (from the least possible memory where that is
more), the SSD from 1 to 32 GB/s each way; once without host memory, and once with as much as the
tensors need behind a link of 25 GB/s. Every step is simulated. Where `auto` takes the ideal time
no policy can be faster, so the others are not run. The picture shows, for each trace, how much
longer than ideal each one's step is over the budget, at 3 GB/s without host memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from teraio.planner.bound import lower_bound_ns
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.minimum import least_memory
from teraio.planner.plan import MIN_TENSOR_BYTES
from teraio.planner.policies import AUTO, policy_named
from teraio.planner.problem import CannotFitError, Problem
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import idle_intervals, load_step, peak
from teraio.profiler.trace import read_trace

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "policies.json"
PICTURE = RESULTS.with_suffix(".svg")
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
RATES = (1, 3, 10, 32)
SHOWN_RATE = 3
OTHERS = ("teraio2025", "g10")
AMPLE = 1 << 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="*", help="names in sample_traces; all if none is given")
    args = parser.parse_args()
    names = args.traces or sorted(p.stem for p in (ROOT / "sample_traces").glob("*.parquet"))
    rows = [row for name in names for row in rows_of(name)]
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print_summary(rows)
    draw(rows)


def rows_of(name: str) -> list[dict[str, Any]]:
    step = load_step(read_trace(ROOT / "sample_traces" / f"{name}.parquet"))
    intervals = tuple(idle_intervals(step, MIN_TENSOR_BYTES))
    least = least_memory(step, intervals).nbytes
    budgets = sorted({max(least, int(share * peak(step))) for share in SHARES}, reverse=True)
    rows = []
    for host_bytes in (0, AMPLE):
        for rate in RATES:
            for budget in budgets:
                channels = with_rates(ASSUMED, ssd_read=rate * 10**9, ssd_write=rate * 10**9)
                problem = Problem(step, intervals, budget, host_bytes, channels)
                row = {"trace": name, "ssd_gb_per_s": rate, "host": bool(host_bytes)}
                row["share"] = round(budget / peak(step), 4)
                rows.append(row | compared(problem))
    print(f"{name}: {len(rows)} points", flush=True)
    return rows


def compared(problem: Problem) -> dict[str, Any]:
    """Return the slowdown of each policy to the ideal step, None for one that cannot fit."""
    step = problem.step
    if peak(step) <= problem.planned_bytes:
        return {"bound": 1.0, AUTO: 1.0}
    started = time.perf_counter()
    ours = slowdown(problem, AUTO)
    row: dict[str, Any] = {AUTO: ours, "auto_s": round(time.perf_counter() - started, 2)}
    row["bound"] = 1.0
    if ours is not None and ours > 1:
        row["bound"] = lower_bound_ns(problem) / step.period_ns
        row |= {name: slowdown(problem, name) for name in OTHERS}
    return row


def slowdown(problem: Problem, name: str) -> float | None:
    try:
        actions = policy_named(name)(problem).actions
    except CannotFitError:
        return None
    return (
        simulate_actions(problem.step, problem.hardware, actions).step_ns / problem.step.period_ns
    )


def print_summary(rows: list[dict[str, Any]]) -> None:
    print(f"{'trace':<20} points  ideal  lost to others  mean and largest gap to the bound")
    for name in dict.fromkeys(row["trace"] for row in rows):
        own = [row for row in rows if row["trace"] == name]
        ideal = sum(row[AUTO] == 1 for row in own)
        lost = sum(row[AUTO] > theirs for row in own for theirs in others_of(row))
        gaps = [row[AUTO] / row["bound"] - 1 for row in own]
        print(
            f"{name:<20} {len(own):>6} {ideal:>6} {lost:>15}"
            f"  {sum(gaps) / len(gaps):.2%} {max(gaps):.2%}"
        )


def others_of(row: dict[str, Any]) -> list[float]:
    return [row[name] for name in OTHERS if row.get(name) is not None]


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "teraio"
    from matplotlib import pyplot as plt

    shown = [r for r in rows if r["ssd_gb_per_s"] == SHOWN_RATE and not r["host"]]
    names = list(dict.fromkeys(row["trace"] for row in shown))
    figure, axes = plt.subplots(2, -(-len(names) // 2), figsize=(14, 6.5), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        own = [row for row in shown if row["trace"] == name]
        for policy in (AUTO, *OTHERS, "bound"):
            known = [(100 * r["share"], value(r, policy)) for r in own]
            line = [(share, slow) for share, slow in known if slow is not None]
            style = {"linestyle": "--", "color": "0.4"} if policy == "bound" else {"marker": "."}
            axis.plot(*zip(*line, strict=True), label=policy, **style)
        axis.set(title=name, xlabel="budget, % of peak", ylabel="step / ideal step")
    axes.flat[0].legend()
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    figure.suptitle(f"SSD at {SHOWN_RATE} GB/s each way, no host memory")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def value(row: dict[str, Any], policy: str) -> float | None:
    """Return a policy's slowdown; where ours is ideal the others were not run."""
    found: float | None = row.get(policy)
    return found


if __name__ == "__main__":
    main()
