"""The demo's predicted step against its measured one.

    python benchmarks/prediction.py          # runs the demo, writes benchmarks/results/

The step as usual, the ideal by the trace, the prediction and the measurement come from one run of
`examples/run_demo.py`; measured times are medians of all steps but the first.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "prediction.json"


def main() -> None:
    subprocess.run([sys.executable, "examples/run_demo.py"], cwd=ROOT, check=True)
    out = ROOT / "demo-out"
    report = json.loads((out / "run.json").read_text())
    usual = json.loads((out / "plain.json").read_text())["seconds"][1:]
    measured = statistics.median(report["step_ns"][1:])
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "usual_s": round(statistics.median(usual), 4),
        "ideal_s": round(report["ideal_ns"] / 1e9, 4),
        "predicted_s": round(report["predicted_step_ns"] / 1e9, 4),
        "measured_s": round(measured / 1e9, 4),
        "measured / predicted": round(measured / report["predicted_step_ns"], 4),
        "measured / usual": round(measured / 1e9 / statistics.median(usual), 4),
        "budget_bytes": report["budget_bytes"],
        "peak_bytes": report["peak_bytes"],
    }
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
