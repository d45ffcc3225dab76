"""Makes `docs/performance.md` from the results of `benchmarks/gpu/bench.py`.

python benchmarks/gpu/report.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
GIB = 1 << 30

HEAD = """# Performance on a GPU

Made by `python benchmarks/gpu/report.py` from `benchmarks/results/gpu-*.json`, which
`benchmarks/gpu/bench.py` wrote. Step times are the device's own, the median of all steps but the
first ones. Budgets are enforced on torch's allocator; "reserved" is what it held at most,
fragments included. Losses are compared with those of the plain run to the bit.
"""


def gib(nbytes: int) -> str:
    """Return a size in GiB."""
    return f"{nbytes / GIB:.2f} GiB"


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    planned = "predicted_ms" in row
    cells = [
        row["name"],
        f"{row['step_ms']:.1f}",
        f"{row['spread_ms']:.1f}",
        f"{row['share_of_ideal']:.1%}",
        gib(row["reserved_bytes"]),
        gib(row["budget_bytes"]) if planned else "",
        f"{row['predicted_ms']:.1f}" if planned else "",
        f"{row['step_ms'] / row['predicted_ms']:.2f}" if planned else "",
        f"{row['bound_ms']:.1f}" if planned else "",
        "equal" if row["losses_equal"] else "differ",
    ]
    return "| " + " | ".join(cells) + " |"


def section(result: dict[str, Any]) -> str:
    """Return the part about one results file."""
    options, torch = result["options"], result["torch"]
    link = result["hardware"]["source"]["host_link"]
    head = (
        "| run | step ms | spread | of ideal | reserved | budget | predicted | "
        "measured / predicted | bound | losses |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    rows = "\n".join(line(row) for row in result["rows"])
    commit = result.get("commit", "?")
    options["train"] = options["train"].strip("[]'")
    words = (
        f"{result['machine']}, torch {torch}, {result['date']}, commit {commit}. "
        f"Llama-like, {result['model']}, batch {options['batch']} x {options['length']} tokens, "
        f"{options['steps']} steps, `{options['train']}`. Host link, {link}."
    )
    picture = f"![Step time over memory](performance-{result['model']}.svg)"
    note = result.get("note", "")
    return f"## {result['model']}\n\n{words}\n\n{head}\n{rows}\n\n{picture}\n\n{note}\n"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the step time of each way to save memory over the memory it takes."""
    mpl.rcParams |= {"svg.hashsalt": "teraio", "svg.fonttype": "none"}
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    families: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        families.setdefault(row["name"].rstrip("0123456789").rstrip("-"), []).append(row)
    for family, rows in families.items():
        memory = [row["reserved_bytes"] / GIB for row in rows]
        label = family.removeprefix("teraio-") + (" (predicted: +)" if len(rows) > 1 else "")
        points = axes.plot(memory, [row["step_ms"] for row in rows], "o-", label=label)
        planned = [(m, r["predicted_ms"]) for m, r in zip(memory, rows, strict=True)
                   if "predicted_ms" in r]  # fmt: skip
        axes.plot(
            *zip(*planned, strict=True), "+", color=points[0].get_color()
        ) if planned else None
    axes.set(xlabel="memory held by torch, GiB", ylabel="step, ms", xlim=(0, None), ylim=(0, None))
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Write the page."""
    files = sorted(RESULTS.glob("gpu-*.json"))
    results = [json.loads(file.read_text()) for file in files]
    for result in results:
        draw(result, ROOT / "docs" / f"performance-{result['model']}.svg")
    parts = [section(result) for result in results]
    page = "\n".join([HEAD, *parts])
    (ROOT / "docs" / "performance.md").write_text(page)


if __name__ == "__main__":
    main()
