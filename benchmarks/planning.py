"""How long planning takes on long steps: read, plan, check, simulate.

    python benchmarks/planning.py            # writes benchmarks/results/planning.json

The steps are that of `sample_traces/teraio-llama.parquet` (9,757 ops) over and over, its
globals living on from one repetition to the next, its times rescaled to 10 s a repetition as
those recorded are distorted by swapping. Fourteen repetitions have the size of a step of
Llama3-70B in TERAIO's paper (arXiv 2506.06472), which plans it in 396.6 s; budget and rates are
those of its published configuration: 78 GiB, 16 GB/s SSDs each way, no host memory. The step
does not wait then; so that it does, it is also planned in 30 % of its peak with 3.2 GB/s. Up to
100,000 ops and intervals, `auto` tries several policies on a step that waits, and improves on
what they find; in longer steps it takes greedy's first plan. Each size runs in a process of its
own, so that the memory is its own too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from teraio.planner.check import check_plan
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.make import make_plan
from teraio.planner.simulate import simulate
from teraio.planner.step import load_step, peak
from teraio.profiler.trace import Trace, read_trace, write_trace

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "planning.json"
LLAMA = ROOT / "sample_traces" / "teraio-llama.parquet"
REPETITION_NS = 10 * 10**9
GIB = 1 << 30
PAPER_S = 396.6


@dataclass(frozen=True)
class Case:
    """A budget and a rate of the SSD, with the repetitions that it is planned for."""

    memory_bytes: int
    ssd_bytes_per_s: int
    sizes: tuple[int, ...]


CASES = {
    "published": Case(78 * GIB, 16 * 10**9, (1, 2, 4, 8, 14, 28, 64)),
    "waits": Case(39 * GIB, 32 * 10**8, (1, 4, 14, 28, 64)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, nargs="*", help="instead of those of the case")
    parser.add_argument("--case", choices=CASES, help="only this one")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--no-record", action="store_true", help="do not write the results")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(Path(args.one), CASES[args.case])))
        return
    load = os.getloadavg()
    rows = [
        row_of(count, name)
        for name, case in CASES.items()
        if args.case in (None, name)
        for count in args.repetitions or case.sizes
    ]
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "load_before": [round(one, 2) for one in load],
        "cases": {name: asdict(case) for name, case in CASES.items()},
        "rows": rows,
    }
    if not args.no_record:
        RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    print_table(rows)


def row_of(count: int, case: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.parquet"
        write_trace(repeated(read_trace(LLAMA), count), file)
        command = [sys.executable, __file__, "--one", str(file), "--case", case]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    print(f"{case}, {row['ops']} ops: {row['total_s']:.2f} s", file=sys.stderr)
    return {"case": case, "repetitions": count, **row}


def repeated(trace: Trace, count: int) -> Trace:
    """Return a trace of one step that is `count` times the trace's."""
    table = trace.table
    n_ops = int(table.column("op")[-1].as_py()) + 1
    ids = table.column("tensor").to_numpy(zero_copy_only=False)
    births = table.column("alloc_op").to_numpy(zero_copy_only=False)
    new_id = int(np.nanmax(ids)) + 1
    lives_on = np.isnan(births)
    last = pc.max(pc.add(table.column("start_ns"), table.column("duration_ns"))).as_py()
    parts = []
    for turn in range(count):
        shifted = {
            "op": pc.add(table.column("op"), pa.scalar(turn * n_ops, pa.int32())),
            "alloc_op": pc.add(table.column("alloc_op"), pa.scalar(turn * n_ops, pa.int32())),
            "free_op": pc.add(table.column("free_op"), pa.scalar(turn * n_ops, pa.int32())),
            "tensor": pa.array(np.where(lives_on, ids, ids + turn * new_id), from_pandas=True),
        }
        start = table.column("start_ns").to_numpy() * (REPETITION_NS / last)
        end = start + table.column("duration_ns").to_numpy() * (REPETITION_NS / last)
        start, end = (np.rint(t).astype(np.int64) + turn * REPETITION_NS for t in (start, end))
        shifted |= {"start_ns": pa.array(start), "duration_ns": pa.array(end - start)}
        part = table
        for name, column in shifted.items():
            field = table.schema.field(name)
            index = table.schema.get_field_index(name)
            part = part.set_column(index, field, pc.cast(column, field.type))
        unused = pc.equal(part.column("access"), "none")
        parts.append(
            part.filter(pc.invert(pc.fill_null(unused, fill_value=False))) if turn else part
        )
    return replace(trace, table=pa.concat_tables(parts))


def measured(file: Path, case: Case) -> dict[str, Any]:
    """Return what one trace takes: seconds of each part, and the most memory of the process."""
    rate = case.ssd_bytes_per_s
    channels = with_rates(ASSUMED, ssd_read=rate, ssd_write=rate, host_link=64 * 10**9)
    started, cpu = time.perf_counter(), time.process_time()
    trace = read_trace(file)
    read = time.perf_counter()
    plan = make_plan(
        trace, sha256="", memory_bytes=case.memory_bytes, hardware=channels, or_minimum=True
    )
    planned, cpu = time.perf_counter(), time.process_time() - cpu
    step = load_step(trace)
    loaded = time.perf_counter()
    check_plan(step, plan)
    checked = time.perf_counter()
    simulated = simulate(step, plan)
    done = time.perf_counter()
    return {
        "ops": len(step.ops),
        "tensors": len(step.tensors),
        "accesses": sum(len(tensor.uses) for tensor in step.tensors),
        "peak_bytes": peak(step),
        "actions": len(plan.actions),
        "slowdown": simulated.step_ns / simulated.ideal_ns,
        "bound": plan.prediction.lower_bound_ns / simulated.ideal_ns,
        "read_s": read - started,
        "make_plan_s": planned - read,
        "policy_s": plan.policy.seconds,
        "load_again_s": loaded - planned,
        "check_again_s": checked - loaded,
        "simulate_again_s": done - checked,
        "total_s": planned - started,
        "total_cpu_s": cpu,
        "most_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print("case          ops   tensors  accesses  total s  cpu s  n log n  GiB   slowdown  bound")
    for row in rows:
        n = row["accesses"]
        per = row["total_cpu_s"] / (n * math.log2(n)) * 1e6
        print(
            f"{row['case']:<9} {row['ops']:>7,} {row['tensors']:>9,} {n:>9,} {row['total_s']:>8.2f}"
            f" {row['total_cpu_s']:>6.2f} {per:>5.2f} us {row['most_memory_bytes'] / GIB:>4.2f}"
            f" {row['slowdown']:>9.4f} {row['bound']:>7.4f}"
        )
    whole = [row for row in rows if row["repetitions"] == 14]
    for row in whole:
        times = PAPER_S / row["total_s"]
        print(f"{row['case']}: TERAIO's planner takes {PAPER_S} s, {times:.0f} times as long")


if __name__ == "__main__":
    main()
