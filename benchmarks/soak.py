"""Thousands of steps that often differ from their plan: does anything grow?

    python benchmarks/soak.py --steps 4000      # writes benchmarks/results/soak.json

A small model is trained under a plan for 60 % of its memory, some of which may go to host memory.
About every third step takes another way, by chance: another batch or module, an evaluation, an
early end, an exception that is caught, a look at the numbers. After each step the process is
measured; the medians of the first and of the last third of the steps, without a start that is
left out, are compared.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import types
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from teraio.executor.session import Run, RunOptions
from teraio.executor.stores.opening import StoreOptions
from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Controls, Plan
from teraio.planner.step import load_step, peak
from teraio.profiler.script import Script, run_script
from teraio.profiler.session import profile_script

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
START = 0.2
"""The share of the steps that is left out: until pools and caches have their size."""

SLACK = {"rss_bytes": 8 << 20, "objects": 300, "ssd_bytes": 0, "host_bytes": 0}
"""What a median may grow by from the first third to the last. The report has a number for each
step, and the allocator of the CPU's memory does not give all of it back."""

SCRIPT = """
import random, sys
import torch
from torch import nn
from soak import take

steps, share = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(96, 96) for _ in range(6)])
extra = nn.Linear(96, 96)
optimizer = torch.optim.Adam([*model.parameters(), *extra.parameters()])
chance = random.Random(0)
WAYS = ("batch", "module", "evaluation", "early end", "exception", "look", "two batches")

for step in range(steps):
    way = chance.choice(WAYS) if chance.random() < share else "planned"
    batches = 2 if way == "two batches" else 1
    try:
        for _ in range(batches):
            x = torch.randn(12 * chance.randrange(1, 11) if way == "batch" else 64, 96)
            if way == "evaluation":
                with torch.no_grad():
                    model(torch.randn(16, 96)).sum().item()
            for layer in model:
                x = torch.relu(layer(x))
                if way == "exception" and layer is model[3]:
                    raise ArithmeticError
            loss = (extra(x) if way == "module" else x).square().mean()
            if way == "early end":
                break
            loss.backward()
    except ArithmeticError:
        pass
    if way == "look":
        model[0].weight.norm().item(), model[5].weight.tolist()
    optimizer.step()
    optimizer.zero_grad()
    loss = x = None
    take(way)
"""


@dataclass
class Samples:
    """What the process had after each step, by measure, and the ways the steps took."""

    run: Run | None = None
    taken: dict[str, list[int]] = field(default_factory=dict)
    ways: list[str] = field(default_factory=list)

    def take(self, way: str) -> None:
        """Measure the process."""
        self.ways.append(way)
        if self.run is None:
            return
        now = {
            "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
            "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
            "threads": threading.active_count(),
            "objects": len(gc.get_objects()),
        }
        for tier, store in self.run._stores.items():
            kept: Any = store
            now[f"{tier}_bytes"] = kept.capacity_bytes
            now[f"{tier}_used_bytes"] = kept.capacity_bytes - kept.free_bytes
        for name, value in now.items():
            self.taken.setdefault(name, []).append(value)


def thirds(values: list[int]) -> tuple[float, float]:
    """Return the medians of the first and of the last third, without the start."""
    settled = values[round(START * len(values)) :]
    part = max(len(settled) // 3, 1)
    return statistics.median(settled[:part]), statistics.median(settled[-part:])


def grown(taken: dict[str, list[int]]) -> list[str]:
    """Return what has grown by more than its slack, in words."""
    found = []
    for name, values in taken.items():
        first, last = thirds(values)
        slack = SLACK.get(name, 0.1 * first if name.endswith("used_bytes") else 0)
        if last > first + slack:
            found.append(f"{name} has grown from {first:.0f} to {last:.0f}")
    return found


def plan_for(script: Path) -> Plan:
    """Plan for the step that most steps are, with a third of what moves in host memory."""
    recorded = profile_script(Script(str(script), ("8", "0")), steps=2, warmup=3, go_on=False)
    assert recorded.trace is not None
    memory = int(peak(load_step(recorded.trace)) * 0.6)
    return make_plan(
        recorded.trace,
        sha256="0" * 64,
        memory_bytes=memory,
        host_bytes=memory // 3,
        hardware=ASSUMED,
        policy="greedy",
        or_minimum=True,
        controls=Controls(min_tensor_bytes=16 << 10),
    )


def soak(steps: int, folder: Path, share: float = 1 / 3) -> dict[str, Any]:
    """Train so many steps under a plan in `folder`; return what was measured."""
    samples = Samples()
    module: Any = types.ModuleType("soak")
    module.take = samples.take
    before = sys.modules.get("soak")
    sys.modules["soak"] = module
    script = folder / "train.py"
    script.write_text(SCRIPT)
    try:
        plan = plan_for(script)
        samples.ways.clear()
        gc.collect()
        gc.freeze()  # what is there already need not be counted again and again
        begun = time.perf_counter()
        options = RunOptions(StoreOptions([folder], checksums=True), io_timeout_s=60)
        with Run(plan, options, lambda _: None) as run:
            samples.run = run
            exit_code = run_script(Script(str(script), (str(steps), str(share))))
        seconds = time.perf_counter() - begun
    finally:
        gc.unfreeze()
        del sys.modules["soak"]
        if before is not None:
            sys.modules["soak"] = before
    report = run.report()
    left = [path.name for path in folder.iterdir() if path.name.startswith("teraio-")]
    return {
        "steps": steps,
        "exit_code": exit_code,
        "seconds": round(seconds, 1),
        "ways": {way: samples.ways.count(way) for way in sorted(set(samples.ways))},
        "steps_that_differ": len(report["divergences"]),
        "moved_bytes": sum(report["offloaded_bytes"].values()),
        "unplanned_fetches": report["unplanned_fetches"],
        "peak_bytes": report["peak_bytes"],
        "budget_bytes": report["budget_bytes"],
        "over_budget_ops": report["over_budget_ops"],
        "left_in_folder": left,
        "medians_of_thirds": {name: thirds(values) for name, values in samples.taken.items()},
        "grown": grown(samples.taken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--ssd", type=Path, help="where to keep tensors [default: a new folder]")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.ssd) as folder:
        measured = soak(args.steps, Path(folder))
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        **measured,
    }
    args.output.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    if measured["grown"] or measured["exit_code"] or measured["left_in_folder"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
