"""The main job in one go: train a small Llama plainly, then in 60 % of the memory it needs.

Runs the commands a user would type, shows each, and ends with the two runs side by side. CPU
memory stands in for the device; the folder `demo-out` stands in for an SSD.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from teraio.planner.step import load_step, peak
from teraio.planner.units import format_bytes, format_ns
from teraio.profiler.trace import read_trace

OUT = Path("demo-out")
TRAIN = "examples/train_llama.py"
SHARE = "60%"


def step(title: str, *words: str) -> None:
    """Show a command and run it; end the demo if it fails."""
    shown = (
        " ".join(words).replace(sys.executable, "python").replace("python -m teraio_cli", "teraio")
    )
    print(f"\n== {title}\n$ {shown}", flush=True)
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def teraio(title: str, command: str, *words: str) -> None:
    """Run a teraio command."""
    step(title, sys.executable, "-m", "teraio_cli", command, *words)


def command() -> str:
    """Return how to type `teraio` here."""
    beside = Path(sys.executable).with_name("teraio")
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else "teraio"


def main() -> None:
    began = time.monotonic()
    OUT.mkdir(exist_ok=True)
    trace, plan, hardware = (str(OUT / n) for n in ("trace.parquet", "plan.json", "hardware.json"))
    plain, planned, report = (str(OUT / n) for n in ("plain.json", "planned.json", "run.json"))

    step("Train as usual", sys.executable, TRAIN, "--losses", plain)
    teraio("Record where memory goes", "profile", "-o", trace, "--force", TRAIN)
    teraio("Measure the folder", "bench", str(OUT), "-o", hardware, "--force")
    teraio(
        f"Plan for {SHARE} of the peak",
        "plan", trace, "-o", plan, "--force", "--memory", SHARE, "--hardware", hardware,
    )  # fmt: skip
    teraio(
        "Train under the plan",
        "run", plan, "--ssd", str(OUT), "--report", report, "--force", TRAIN, "--losses", planned,
    )  # fmt: skip
    table, equal = compare(Path(plain), Path(planned), Path(report), Path(trace))
    Console().print("\n", table)
    print(f"{time.monotonic() - began:.0f} s in all; everything is in {OUT}/")
    print(f"\nnext: {command()} inspect {plan}")
    if not equal:
        sys.exit("the losses differ: this must not happen, please report it")


def compare(plain: Path, planned: Path, report: Path, trace: Path) -> tuple[Table, bool]:
    """Return the table of both runs, and whether their losses are equal to the bit."""
    without, under = json.loads(plain.read_text()), json.loads(planned.read_text())
    done: dict[str, Any] = json.loads(report.read_text())
    equal = without["losses"] == under["losses"]
    usual = statistics.median(without["seconds"][1:]) * 1e9
    measured = statistics.median(done["step_ns"][1:])
    needed = peak(load_step(read_trace(trace)))
    steps = done["steps"]
    stall = sum(done["stall_ns"].values()) / steps
    rows = [
        ("peak memory without a plan", format_bytes(needed)),
        ("budget", f"{format_bytes(done['budget_bytes'])} ({SHARE})"),
        ("peak memory under the plan", format_bytes(done["peak_bytes"])),
        ("step as usual (median)", format_ns(round(usual))),
        ("step, ideal by the trace", format_ns(done["ideal_ns"])),
        ("step, predicted", format_ns(done["predicted_step_ns"])),
        ("step, measured (median)", format_ns(round(measured))),
        ("stall a step, set-up included", format_ns(round(stall))),
        ("bytes offloaded in all", format_bytes(sum(done["offloaded_bytes"].values()))),
        ("bytes prefetched in all", format_bytes(sum(done["prefetched_bytes"].values()))),
        ("storage", ", ".join(f"{t} by {p}" for t, p in done["io_path"].items())),
        (f"losses of {steps} steps", "equal, bitwise" if equal else "DIFFERENT"),
    ]
    table = Table("", "", title="The same training in less memory", show_header=False)
    for row in rows:
        table.add_row(*row)
    return table, equal


if __name__ == "__main__":
    main()
