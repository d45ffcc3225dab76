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
from warm import Warm

FOLDER = Path(__file__).parent / "programs"
# What the programs run is covered by other tests, and measuring it takes as long as they do.
ENVIRONMENT = UNMEASURED | {"PYTHONPATH": str(FOLDER)}
HEAVY = ("accelerate", "transformers.models.llama.modeling_llama", "transformers.trainer")
TIMEOUT = 120
NOTHING_RECORDED = 70

Process = Warm | subprocess.Popen[bytes]


@dataclass(frozen=True)
class Program:
    """A program of the suite: a script with its words, and what the table says of it.

    `needs` are packages and commands beside torch. A fresh one runs in processes of its own, the
    others where torch was imported before. `resident` says why its plan may be empty.
    """

    name: str
    about: str
    script: str
    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_module: bool = False
    fresh: bool = False

    @property
    def command(self) -> list[str]:
        """The words after `python`."""
        target = ["-m", self.script] if self.is_module else [str(FOLDER / f"{self.script}.py")]
        return [*target, "--out", "out", *self.words]

    @property
    def missing(self) -> list[str]:
        """What it needs and this machine lacks."""
        found = (shutil.which(name) or importlib.util.find_spec(name) for name in self.needs)
        return [name for name, place in zip(self.needs, found, strict=True) if place is None]


@dataclass
class Outcome:
    """How a program fared. `report` is that of its run, `said` what a refusal said."""

    program: Program
    plain: Path
    profiled: Path
    planned: Path
    pinned: int = 0
    peak_bytes: int = 0
    said: str = ""
    report: dict[str, Any] = field(default_factory=dict)


def outcome_of(program: Program, home: Path) -> Outcome:
    """Run a program plainly, to its end under the recorder, and under a plan for half its peak.

    Raises AssertionError if it fails under teraio and not without.
    """
    plain, profiled, planned, ssd = (home / n for n in ("plain", "profiled", "planned", "ssd"))
    for folder in (plain, profiled, planned, ssd):
        folder.mkdir()
    trace, plan, report = (home / n for n in ("trace.parquet", "plan.json", "report.json"))
    outcome = Outcome(program, plain / "out", profiled / "out", planned / "out")

    recorded = [*MODULE, "profile", "--all", "-o", trace, *program.command]
    both = start(program, program.command, plain), start(program, recorded, profiled)
    require(both[0], 0)
    said = require(both[1], 0, NOTHING_RECORDED)
    if both[1].returncode:
        outcome.said = said
        return outcome
    budget = ["--memory", "50%", "--or-minimum", "--min-tensor", "16KiB", "--policy", "greedy"]
    made = here("plan", trace, "-o", plan, *budget)
    assert made.returncode == 0, made.stderr.decode()
    run = [*MODULE, "run", plan, "--ssd", ssd, "--report", report, *program.command]
    outcome.said = require(start(program, run, planned, brief=False), 0)
    assert list(ssd.iterdir()) == []
    outcome.report = json.loads(report.read_bytes())
    outcome.peak_bytes, outcome.pinned = recorded_peak(trace)
    return outcome


def recorded_peak(trace: Path) -> tuple[int, int]:
    """Return a trace's peak, and the bytes in it that are pinned to the device."""
    from teraio.planner.step import load_step, peak
    from teraio.profiler.trace import read_trace

    with trace.open("rb") as stream:
        step = load_step(read_trace(stream))
    return peak(step), sum(tensor.size for tensor in step.tensors if tensor.pinned)


def start(
    program: Program, words: list[str | Path], folder: Path, *, brief: bool = True
) -> Process:
    """Run `python WORDS`; where the program is fresh, with nothing imported before."""
    if not program.fresh:
        heavy = {"transformers", "accelerate"} & set(program.needs)
        imported = HEAVY if heavy else ()
        return Warm(*words, cwd=folder, env=ENVIRONMENT, imported=imported, brief=brief)
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def require(process: Process, *codes: int) -> str:
    """Wait until a process has ended with one of these codes; return what it said."""
    said = b"".join(process.communicate(timeout=TIMEOUT)).decode()
    assert process.returncode in codes, said
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
