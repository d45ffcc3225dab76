"""Runs a program plainly, under the recorder and under a plan, and says how these compare."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli import MODULE, UNMEASURED, here
from suite import Program
from warm import Warm

from teraio.planner.step import load_step, peak
from teraio.profiler.trace import read_trace

FOLDER = Path(__file__).parent / "programs"
# What the programs run is covered by other tests, and measuring it takes as long as they do.
ENVIRONMENT = UNMEASURED | {"PYTHONPATH": str(FOLDER)}
HEAVY = ("accelerate", "peft", "transformers.models.llama.modeling_llama", "transformers.trainer")
TERAIO = ("teraio_cli.main", "teraio.profiler.session", "teraio.executor.session")
TIMEOUT = 120
NOTHING_RECORDED = 70
BUDGET = ("--memory", "50%", "--or-minimum", "--min-tensor", "16KiB", "--policy", "greedy")
TAKEN_APART = ("Whole programs", "Memory reached without an operator", "Threads and processes")

Process = Warm | subprocess.Popen[bytes]


@dataclass
class Outcome:
    """What a program wrote in each of its runs, and the report of the planned one.

    `said` is what `teraio profile` said to a program it refused, and `why` what
    `teraio plan --explain` said of a tensor that stays.
    """

    program: Program
    plain: Path
    profiled: Path
    planned: Path
    peak_bytes: int = 0
    said: str = ""
    why: str = ""
    report: dict[str, Any] = field(default_factory=dict)


def command(program: Program) -> list[str]:
    """Return the words after `python`."""
    script = program.script
    target = ["-m", script] if program.is_module else [str(FOLDER / f"{script}.py")]
    return [*target, "--out", "out", *program.words]


def missing(program: Program) -> list[str]:
    """Return what a program needs and this machine lacks."""
    needs = ("torch", *program.needs)
    return [name for name in needs if not (importlib.util.find_spec(name) or shutil.which(name))]


def outcome_of(program: Program, home: Path) -> Outcome:
    """Run a program plainly, to its end under the recorder, and under a plan for half its peak.

    Raises AssertionError if it fails under teraio and not without.
    """
    plain, profiled, planned, ssd = (home / n for n in ("plain", "profiled", "planned", "ssd"))
    for folder in (plain, profiled, planned, ssd):
        folder.mkdir()
    trace, plan, report = (home / n for n in ("trace.parquet", "plan.json", "report.json"))
    outcome = Outcome(program, plain / "out", profiled / "out", planned / "out")
    words = command(program)

    recorded = [*MODULE, "profile", "--all", "-o", trace, *words]
    both = start(program, words, plain), start(program, recorded, profiled)
    require(both[0], 0)
    outcome.said = require(both[1], NOTHING_RECORDED if program.refused else 0)
    if program.refused:
        return outcome
    made = here("plan", trace, "-o", plan, *BUDGET)
    assert made.returncode == 0, made.stderr.decode()
    if program.stays:
        explained = here("plan", trace, *BUDGET, "--explain", program.stays)
        outcome.why = explained.stdout.decode() + explained.stderr.decode()
    run = [*MODULE, "run", plan, "--ssd", ssd, "--report", report, *words]
    # How a process is taken apart while tensors are away is seen in a few.
    require(start(program, run, planned, brief=program.group not in TAKEN_APART), 0)
    assert list(ssd.iterdir()) == []
    outcome.report = json.loads(report.read_bytes())
    with trace.open("rb") as stream:
        outcome.peak_bytes = peak(load_step(read_trace(stream)))
    return outcome


def start(
    program: Program, words: list[str | Path] | list[str], folder: Path, *, brief: bool = True
) -> Process:
    """Run `python WORDS`; where the program is fresh, with nothing imported before."""
    if not program.fresh:
        imported: tuple[str, ...] = TERAIO if words[0] == "-m" else ()
        if {"transformers", "accelerate"} & set(program.needs):
            imported = HEAVY
        return Warm(*words, cwd=folder, env=ENVIRONMENT, imported=imported, brief=brief)
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def require(process: Process, code: int) -> str:
    """Wait until a process has ended with this code; return what it said."""
    said = b"".join(process.communicate(timeout=TIMEOUT)).decode()
    assert process.returncode == code, f"ended with {process.returncode}: {said}"
    return said


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {os.fspath(path.relative_to(folder)): path.read_bytes() for path in files}


def differing(folder: Path, other: Path) -> set[str]:
    """Return the files that are not in both folders with the same bytes."""
    ours, theirs = contents(folder), contents(other)
    assert ours
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return what is kept of an outcome: the table is made from it."""
    program, report = outcome.program, outcome.report
    if program.refused:
        return {"outcome": "refused"}
    steps = [int(message.split()[1].rstrip(":")) for message in report["divergences"]]
    return {
        "outcome": "resident" if program.stays else "moved",
        "peak_bytes": outcome.peak_bytes,
        "budget_bytes": report["budget_bytes"],
        "moved_bytes": sum(report["offloaded_bytes"].values()),
        "steps": report["steps"],
        "differing": steps,
        "not_executed": report["planned_actions"] - report["executed_actions"],
        "planned": report["planned_actions"],
        "over_budget_ops": report["over_budget_ops"],
    }


def fares_as(found: dict[str, Any], kept: dict[str, Any]) -> bool:
    """Whether an outcome is as good as the one kept, in all that does not depend on timing."""
    if found["outcome"] == "refused" or kept["outcome"] == "refused":
        return found == kept
    same = all(found[key] == kept[key] for key in ("outcome", "steps", "differing"))
    flawless = ("not_executed", "over_budget_ops")
    return same and all(kept[key] or not found[key] for key in flawless)
