"""What interception costs: the recorder and an empty plan against plain torch.

    python benchmarks/overhead.py            # writes benchmarks/results/overhead.json

Two figures. Per op: a chain of tiny in-place additions, for which torch itself takes about a
microsecond, so that the difference is what one op costs. Per step: `examples/train_llama.py`
plainly and under a plan without actions, in alternation; the ratio is that of the medians of
all steps but each run's first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from teraio.profiler.clock import HostClock
from teraio.profiler.modules import ModuleWatch
from teraio.profiler.opstream import OpStream
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.recorder import Recorder
from teraio.profiler.session import warm_up_dispatch
from teraio.profiler.storages import Block, StorageTable

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "overhead.json"
OPS = 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "us_per_op": per_op(args.rounds),
        "step": per_step(args.rounds),
    }
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


def per_op(rounds: int) -> dict[str, float]:
    """Microseconds that one tiny op takes: plainly, seen, and recorded."""
    warm_up_dispatch()
    times: dict[str, list[float]] = {"plain": [], "op stream": [], "recorder": []}
    for _ in range(rounds):
        times["plain"].append(tiny_ops())
        table: StorageTable[Block] = StorageTable(Block)
        with OpStream(table, []):
            times["op stream"].append(tiny_ops())
        table = StorageTable(Block)
        recorder = Recorder(
            table=table,
            modules=ModuleWatch(),
            optimizers=OptimizerWatch(ignore, ignore),
            clock=HostClock(),
            new_meter=not_metered,
            keep=1,
            meter_step=-1,
        )
        with OpStream(table, [recorder]):
            times["recorder"].append(tiny_ops())
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def tiny_ops() -> float:
    value = torch.ones(4)
    begun = time.perf_counter()
    for _ in range(OPS):
        value.add_(1)
    return (time.perf_counter() - begun) / OPS * 1e6


def ignore(_: object) -> None:
    """Do nothing with an optimizer."""


def not_metered() -> Any:
    raise NotImplementedError


def per_step(rounds: int) -> dict[str, Any]:
    """Seconds a step of the demo's model takes plainly and under an empty plan."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, plan = str(folder / "t.parquet"), str(folder / "p.json")
        train = str(ROOT / "examples" / "train_llama.py")
        teraio("profile", "-o", trace, train)
        teraio("plan", trace, "-o", plan, "--memory", "100%")
        contenders: dict[str, Callable[[str], None]] = {
            "plain": lambda out: run([sys.executable, train, "--losses", out]),
            "empty plan": lambda out: teraio("run", plan, "--ssd", name, train, "--losses", out),
        }
        seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
        for _ in range(rounds):
            for contender, start in contenders.items():
                start(str(folder / "out.json"))
                steps = json.loads((folder / "out.json").read_text())["seconds"]
                seconds[contender] += steps[1:]
    medians = {contender: statistics.median(values) for contender, values in seconds.items()}
    return {
        "median_s": medians,
        "empty plan / plain": round(medians["empty plan"] / medians["plain"], 4),
        "steps": len(seconds["plain"]),
    }


def teraio(*words: str) -> None:
    run([sys.executable, "-m", "teraio_cli", *words])


def run(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True)


if __name__ == "__main__":
    main()
