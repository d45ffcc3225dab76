"""Real programs, unmodified: under a plan they give to the bit what they give without one.

Each program in `programs/` knows nothing of teraio. It is run plainly, under the recorder to
its end, and under a plan for 60 % of its memory, and everything it wrote is compared.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli import MODULE, UNMEASURED, here
from warm import Warm

FOLDER = Path(__file__).parent / "programs"
# What the programs run is covered by other tests, and measuring it takes as long as they do.
ENVIRONMENT = UNMEASURED | {"PYTHONPATH": str(FOLDER)}
HEAVY = ("accelerate", "transformers.models.llama.modeling_llama", "transformers.trainer")
Process = Warm | subprocess.Popen[bytes]


@dataclass(frozen=True)
class Program:
    """A program, the packages it needs beside torch, and the steps that differ from its plan.

    A fresh one runs in processes of its own, the others where torch was imported before.
    """

    name: str
    needs: tuple[str, ...] = ()
    differing: tuple[int, ...] = ()
    is_module: bool = False
    fresh: bool = False

    @property
    def command(self) -> list[str]:
        target = ["-m", self.name] if self.is_module else [str(FOLDER / f"{self.name}.py")]
        return [*target, "--out", "out"]


PROGRAMS = [
    Program("plain_loop", needs=("transformers",)),
    # saved a checkpoint after step 3
    Program("trainer", needs=("accelerate", "transformers"), differing=(4,)),
    Program("accelerated", needs=("accelerate",)),
    Program("conv_net"),
    Program("tied_embeddings"),
    Program("checkpointed"),
    Program("autocast"),
    # evaluated after steps 1, 5 and 9, loaded a checkpoint after step 6
    Program("evaluating", needs=("safetensors",), differing=(2, 6, 7)),
    Program("changing_shape", differing=(4,)),
    # a step ends with that of one optimizer: in the first one the other has no states yet
    Program("two_models", differing=(1,)),
    Program("sparse_embedding", differing=(1,)),
    Program("foreach"),
    Program("frozen_layer"),
    Program("workers", fresh=True),
    Program("package", is_module=True, fresh=True),
]


@dataclass(frozen=True)
class Outcome:
    """What a program wrote in each of its runs, and the report of the planned one."""

    program: Program
    plain: Path
    profiled: Path
    planned: Path
    report: dict[str, Any]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    program: Program = request.param
    for package in ("torch", *program.needs):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    home = tmp_path_factory.mktemp(program.name)
    names = ("plain", "profiled", "planned", "ssd")
    plain, profiled, planned, ssd = (home / name for name in names)
    for folder in (plain, profiled, planned, ssd):
        folder.mkdir()
    trace, plan, report = (home / name for name in ("trace.parquet", "plan.json", "report.json"))

    both = (
        start(program, program.command, plain),
        start(program, [*MODULE, "profile", "--all", "-o", trace, *program.command], profiled),
    )
    for process in both:
        require_success(process)
    budget = ["--memory", "60%", "--or-minimum", "--min-tensor", "64KiB", "--policy", "greedy"]
    made = here("plan", trace, "-o", plan, *budget)
    assert made.returncode == 0, made.stderr.decode()
    run = [*MODULE, "run", plan, "--ssd", ssd, "--report", report, *program.command]
    require_success(start(program, run, planned))
    assert list(ssd.iterdir()) == []
    return Outcome(
        program, plain / "out", profiled / "out", planned / "out", json.loads(report.read_bytes())
    )


def start(program: Program, words: list[str | Path], folder: Path) -> Process:
    """Run `python WORDS`; where the program is fresh, with nothing imported before."""
    if not program.fresh:
        heavy = {"transformers", "accelerate"} & set(program.needs)
        return Warm(*words, cwd=folder, env=ENVIRONMENT, imported=HEAVY if heavy else ())
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def require_success(process: Process) -> None:
    said = b"".join(process.communicate(timeout=120))
    assert process.returncode == 0, said.decode()


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def differing(folder: Path, other: Path) -> set[str]:
    """Return the files that are not in both folders with the same bytes."""
    ours, theirs = contents(folder), contents(other)
    assert ours.keys() >= {"losses.json", "model0.pt"}
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


def test_recording_changes_no_result(outcome: Outcome) -> None:
    assert differing(outcome.plain, outcome.profiled) == set()


def test_the_plan_changes_no_result(outcome: Outcome) -> None:
    assert differing(outcome.plain, outcome.planned) == set()


def test_the_budget_is_kept_by_moving_bytes(outcome: Outcome) -> None:
    report = outcome.report
    assert report["offloaded_bytes"]["ssd"] > 0
    assert report["prefetched_bytes"]["ssd"] > 0
    assert report["peak_bytes"] <= report["budget_bytes"]
    assert report["over_budget_ops"] == 0


def test_the_plan_is_carried_out(outcome: Outcome) -> None:
    report = outcome.report
    assert report["executed_actions"] == report["planned_actions"] > 0
    steps = [int(message.split()[1].rstrip(":")) for message in report["divergences"]]
    assert tuple(steps) == outcome.program.differing
