"""Trains a model plainly, as others save memory, and under plans at several budgets; one command.

    python benchmarks/gpu/bench.py --model 1b --folder /mnt/nvme -o benchmarks/results/gpu-1b.json

Each row is one run in a process of its own. Step times are the device's own, the median of all
but the first steps. Budgets are shares of what torch's allocator holds in the plain run, and
are enforced on it. Losses are compared with the plain run's to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

TRAIN = Path(__file__).parent / "train.py"
WARM = 3
"""Steps that are not counted: the set-up, and the one that fetches what that left away."""

PEERS = {
    "checkpointing": ["--checkpointing"],
    "save_on_cpu": ["--save-on-cpu"],
    "fsdp2-offload": ["--fsdp-offload"],
    "fsdp2-offload-checkpointing": ["--fsdp-offload", "--checkpointing"],
}
DRIVE = {"read": 6.7e9, "write": 6.5e9}


@dataclass
class Bench:
    """What the rows have in common."""

    options: argparse.Namespace
    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def train(self, name: str, words: list[str], *, under: list[str] | None = None) -> Any:
        """Train with these words, plainly or under `teraio run`; return what it wrote."""
        out = self.folder / f"{name}.json"
        script = self.script(self.options.steps, "--out", str(out), *words)
        if not self.call(name, [*(under or []), *script]):
            return None
        return json.loads(out.read_text())

    def script(self, steps: int, *words: str) -> list[str]:
        """Return the words that train so many steps."""
        options = self.options
        shape = ("--model", options.model, "--batch", options.batch, "--length", options.length)
        return [str(TRAIN), *map(str, shape), "--steps", str(steps), *options.train, *words]

    def call(self, name: str, words: list[str]) -> bool:
        """Run a Python program; say what failed, and go on."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=False,
            env=os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, cwd=self.folder,
            timeout=self.options.timeout,
        )  # fmt: skip
        said = (done.stdout + done.stderr).strip().splitlines()
        took = time.monotonic() - began
        print(f"{name}: {took:.0f} s, exit {done.returncode}: {' | '.join(said[-6:])[:600]}")
        return done.returncode == 0

    def teraio(self, name: str, *words: str) -> bool:
        """Run a teraio command."""
        return self.call(name, ["-m", "teraio_cli", *words])

    def add(self, name: str, trained: Any, **more: Any) -> dict[str, Any]:
        """Add a row and return it."""
        steps = sorted(trained["step_ms"][WARM - 1 :])
        ideal = self.rows[0] if self.rows else None
        median = statistics.median(steps)
        row = {
            "name": name,
            "step_ms": round(median, 2),
            "each_ms": [round(ms, 1) for ms in trained["step_ms"]],
            "spread_ms": round(steps[-1] - steps[0], 2),
            "share_of_ideal": round(ideal["step_ms"] / median, 4) if ideal else 1.0,
            "reserved_bytes": trained["reserved_bytes"],
            "losses_equal": ideal is None or ideal["losses"] == trained["losses"],
            **more,
            "losses": trained["losses"],
        }
        self.rows.append(row)
        shown = {key: value for key, value in row.items() if key != "losses"}
        print(json.dumps(shown), flush=True)
        return row


def planned(bench: Bench, ideal: dict[str, Any], store: str, share: int, words: list[str]) -> None:
    """Plan for a share of the plain run's memory, and run that."""
    name = f"teraio-{store}-{share}" + ("-checkpointing" if "--checkpointing" in words else "")
    plan, report = f"{name}.plan.json", f"{name}.report.json"
    trace = "checkpointing.parquet" if "--checkpointing" in words else "trace.parquet"
    budget = ideal["reserved_bytes"] * share // 100
    to_host = ["--host-memory", bench.options.host_memory, "--tiers", "host"]
    how, where = {"host": (to_host, [])}.get(store, ([], []))
    if store.startswith("emulated"):
        drives = int(store.removeprefix("emulated"))
        read, write = int(DRIVE["read"] * drives), int(DRIVE["write"] * drives)
        where = ["--emulate-ssd", f"{read}B/s,{write}B/s"]
        how = ["--ssd-read", f"{read}B/s", "--ssd-write", f"{write}B/s"]
    if not bench.teraio(
        f"{name} plan", "plan", trace, "-o", plan, "--force", "--memory", f"{budget}B",
        "--margin", bench.options.margin, "--hardware", "hardware.json", *how,
    ):  # fmt: skip
        return
    command = ["-m", "teraio_cli", "run", plan, "--report", report, "--force", "--enforce"]
    trained = bench.train(name, words, under=[*command, *where])
    if trained is None:
        return
    made = json.loads((bench.folder / plan).read_text())
    told = json.loads((bench.folder / report).read_text())
    prediction = made["prediction"]
    row = bench.add(
        name,
        trained,
        budget_bytes=budget,
        predicted_ms=round(prediction["step_ns"] / 1e6, 2),
        ideal_ms=round(prediction["ideal_ns"] / 1e6, 2),
        bound_ms=round(prediction["lower_bound_ns"] / 1e6, 2),
        policy=made["policy"]["name"],
        io_path=told["io_path"],
        offloaded_bytes=told["offloaded_bytes"],
        prefetched_bytes=told["prefetched_bytes"],
        stall_ms={cause: round(ns / 1e6, 1) for cause, ns in told["stall_ns"].items()},
        allocator=told["allocator"],
        out_of_memory=told["out_of_memory"],
        over_budget_ops=told["over_budget_ops"],
        unplanned=[told["unplanned_fetches"], told["unplanned_evictions"]],
        divergences=len(told["divergences"]),
        actions=[told["planned_actions"], told["executed_actions"]],
    )
    row["measured_to_predicted"] = round(row["step_ms"] / row["predicted_ms"], 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="1b")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--train", action="append", default=[], help="more words for the script")
    parser.add_argument("--shares", type=int, nargs="*", default=[70, 50, 35], help="per cent")
    parser.add_argument("--stores", nargs="*", default=["host"], help="host, ssd, emulated4 ...")
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--checkpointed", action="store_true", help="also plan checkpointed runs")
    parser.add_argument("--host-memory", default="64GiB")
    parser.add_argument("--margin", default="6%", help="for fragments of the allocator's")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    folder = options.folder.resolve() / "teraio-gpu-bench"
    folder.mkdir(exist_ok=True)
    bench = Bench(options, folder)
    ideal = bench.add("ideal", bench.train("ideal", []))
    result = {
        "machine": f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "model": options.model,
        "options": {k: str(v) for k, v in vars(options).items()},
        "hardware": None,
        "rows": bench.rows,
    }

    def save() -> None:
        options.output.write_text(json.dumps(result, indent=1, default=str) + "\n")

    def profile(trace: str, words: list[str]) -> bool:
        return bench.teraio(trace, "profile", "-o", trace, "--force", *bench.script(9, *words))

    save()
    if bench.teraio("bench", "bench", ".", "-o", "hardware.json", "--force"):
        result["hardware"] = json.loads((folder / "hardware.json").read_text())
    profile("trace.parquet", [])
    for store in options.stores:
        for share in options.shares:
            planned(bench, ideal, store, share, [])
            save()
    for peer in options.peers:
        trained = bench.train(peer, PEERS[peer])
        if trained is not None:
            bench.add(peer, trained)
        save()
    if options.checkpointed and profile("checkpointing.parquet", ["--checkpointing"]):
        for share in options.shares:
            planned(bench, ideal, options.stores[0], share, ["--checkpointing"])
            save()


if __name__ == "__main__":
    main()
