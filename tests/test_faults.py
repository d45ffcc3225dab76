"""Drives that fail under real runs: the right numbers, or one clear error and an end.

docs/faults.md says what is checked here.
"""

from __future__ import annotations

import json
import random
import re
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli import MODULE, UNMEASURED, here, names_in
from example_counts import TIMES
from faults import Fault
from warm import Warm

pytest.importorskip("torch")

TESTS = Path(__file__).parent
COMPAT = TESTS / "compat" / "programs"
ENVIRONMENT = UNMEASURED | {"PYTHONPATH": str(COMPAT)}
OTHERS = ("two_models", "tied_embeddings", "changing_shape", "conv_net", "foreach", "checkpointed")
"""Programs for faults at random: the more of them, the more examples are asked for."""

PLACE = r"`[^`]*/data-0` at offset \d+, length \d+"
LABEL = r"tensor \d+( `[^`]+`)?, step \d+, op \d+"

SMALL = """
import os, sys, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])
optimizer = torch.optim.Adam(model.parameters())
losses = []
for step in range(5):
    loss = model(torch.randn(64, 128)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
os.mkdir(sys.argv[2])
torch.save({"losses": losses, "state": model.state_dict()}, sys.argv[2] + "/kept.pt")
"""


@dataclass(frozen=True)
class Planned:
    """A program with its plan, and the folder of what it writes without one."""

    script: Path
    folder: Path

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    def made(self, *options: str) -> Planned:
        """Run the program plainly and record it at once, and plan for half of its peak."""
        plain = [self.script, "--out", "plain"]
        recorded = [*MODULE, "profile", "-o", "trace.parquet", self.script, "--out", "profiled"]
        both = [Warm(*w, cwd=self.folder, env=ENVIRONMENT) for w in (plain, recorded)]
        for process in both:
            assert process.done().returncode == 0
        budget = ["--memory", "50%", "--or-minimum", "--min-tensor", "16KiB", "--policy", "greedy"]
        words = ["trace.parquet", "-o", self.plan, *budget, *options]
        done = here("plan", *words, cwd=self.folder)
        assert done.returncode == 0, done.stderr.decode()
        return self


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder = tmp_path_factory.mktemp("small")
    (folder / "train.py").write_text(SMALL)
    return Planned(folder / "train.py", folder).made()


@pytest.fixture(scope="module")
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return Planned(COMPAT / f"{request.param}.py", tmp_path_factory.mktemp(request.param)).made()


@dataclass(frozen=True)
class Ended:
    """How a run under a fault ended."""

    code: int
    said: str
    right: bool
    hits: int
    left: list[str]
    seconds: float


def run(program: Planned, fault: Fault, folder: Path, *options: str) -> Ended:
    """Run a program under its plan on a faulty drive, in a folder with nothing else in it."""
    ssd = folder / "ssd"
    ssd.mkdir(exist_ok=True)
    words = ["run", program.plan, "--ssd", ssd, *options, program.script, "--out", "out"]
    begun = time.perf_counter()
    started = Warm(TESTS / "faults.py", str(fault), *words, cwd=folder, env=ENVIRONMENT)
    _, said = started.communicate(timeout=60)
    seconds = time.perf_counter() - begun
    assert started.returncode is not None
    ssd.chmod(0o700)
    right = contents(folder / "out") == contents(program.folder / "plain")
    hits = (folder / "hits").read_text().split() if (folder / "hits").exists() else []
    return Ended(started.returncode, said.decode(), right, len(hits), names_in(ssd), seconds)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def require_right(ended: Ended) -> None:
    assert ended.code == 0, ended.said
    assert "Traceback" not in ended.said
    assert ended.right
    assert ended.left == []


def require_clean(ended: Ended) -> None:
    """Check that a run failed with an error that names everything there is to name."""
    assert ended.code == 74, ended.said
    assert "Traceback" not in ended.said
    errors = [line for line in ended.said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.said
    assert re.search(PLACE, errors[0]), ended.said
    assert re.search(LABEL, errors[0]), ended.said
    assert not ended.right
    assert ended.left == []


# Faults that a run outlives


@pytest.mark.parametrize(
    "fault",
    [
        Fault("short", "write", rate=0.3),
        Fault("short", "read", rate=0.3),
        Fault("slow", "read", rate=0.3),
        Fault("removed", "write", first=9, times=1),
        Fault("locked", "read", first=9, times=1),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.verb}",
)
def test_the_numbers_are_right(small: Planned, tmp_path: Path, fault: Fault) -> None:
    ended = run(small, fault, tmp_path, "--checksums")
    require_right(ended)
    assert ended.hits == fault.times if fault.times == 1 else ended.hits > 5


def test_host_memory_takes_over_from_a_drive_that_takes_no_more(
    small: Planned, tmp_path: Path
) -> None:
    """The plan sends a little to host memory, and its budget has room for all."""
    plan = json.loads(small.plan.read_text())
    plan["budget"]["host_bytes"] = 64 << 20
    tensor = next(a["tensor"] for a in plan["actions"] if a["do"] == "offload")
    for action in plan["actions"]:
        if action["tensor"] == tensor:
            action["to" if action["do"] == "offload" else "from"] = "host"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "plain").symlink_to(small.folder / "plain")
    both = Planned(small.script, tmp_path)
    ended = run(both, Fault("EIO", "write", first=7), tmp_path, "--report", "report.json")
    require_right(ended)
    report = json.loads((tmp_path / "report.json").read_text())
    assert 1 <= len(report["failed_writes"]) <= ended.hits
    assert re.search(PLACE, report["failed_writes"][0])
    assert report["peak_bytes"] <= report["budget_bytes"]
    assert f"warning: {len(report['failed_writes'])} writes failed" in ended.said
    assert ended.hits < 20, "the drive is left alone"


# Faults that end it


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        ("write", "EIO"), ("write", "ENOSPC"), ("write", "nothing"),
        ("read", "EIO"), ("read", "EACCES"), ("read", "nothing"),
    ],
)  # fmt: skip
def test_a_failure_is_clean(small: Planned, tmp_path: Path, verb: str, kind: str) -> None:
    ended = run(small, Fault(kind, verb, first=5, times=1), tmp_path)
    require_clean(ended)
    assert f"cannot {verb} `{tmp_path}" in ended.said
    assert ("no bytes moved" if kind == "nothing" else f"{kind} (") in ended.said


@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_changed_bit_is_found_with_checksums(small: Planned, tmp_path: Path, verb: str) -> None:
    ended = run(small, Fault("corrupted", verb, first=5, times=1), tmp_path, "--checksums")
    require_clean(ended)
    assert "read back with CRC-32" in ended.said


def test_a_changed_bit_is_not_looked_for_without_checksums(small: Planned, tmp_path: Path) -> None:
    ended = run(small, Fault("corrupted", "read", first=20, times=1), tmp_path)
    assert (ended.code, ended.right) == (0, False), "what --checksums is for"


@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_request_that_does_not_come_back_is_named(
    small: Planned, tmp_path: Path, verb: str
) -> None:
    ended = run(small, Fault("stuck", verb, first=5, times=1), tmp_path, "--io-timeout", "1")
    require_clean(ended)
    assert f"the {verb} of `{tmp_path}" in ended.said
    assert "has not come back for 1" in ended.said
    assert ended.seconds < 50


CATCHES = SMALL.replace("    loss = model", "    try: loss = model").replace(
    "    loss.backward()\n    optimizer.step()",
    "    except Exception: continue\n    try: loss.backward(); optimizer.step()\n"
    "    except Exception: pass",
)


@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_script_that_catches_the_error_does_not_hide_it(
    small: Planned, tmp_path: Path, verb: str
) -> None:
    script = tmp_path / "catches.py"
    script.write_text(CATCHES)
    hiding = Planned(script, small.folder)
    ended = run(hiding, Fault("EIO", verb, first=20, times=1), tmp_path)
    assert ended.code == 74, ended.said
    assert f"error: cannot {verb} `{tmp_path}" in ended.said
    assert re.search(LABEL, ended.said)
    assert ended.left == []


def test_a_script_may_make_another_error_of_it(small: Planned, tmp_path: Path) -> None:
    script = tmp_path / "wraps.py"
    script.write_text("try:\n" + textwrap.indent(SMALL, "    ") + WRAPS)
    ended = run(Planned(script, small.folder), Fault("EIO", "read", first=20), tmp_path)
    assert ended.code == 1
    assert "RuntimeError: no more" in ended.said
    assert f"StorageError: cannot read `{tmp_path}" in ended.said
    assert ended.left == []


WRAPS = """
except Exception as error:
    raise RuntimeError("no more") from error
"""


# Faults at random


@pytest.mark.parametrize("other", OTHERS[: max(1, round(TIMES))], indirect=True)
@pytest.mark.parametrize("number", range(max(1, round(3 * TIMES))))
def test_every_end_is_right_or_clean(other: Planned, tmp_path: Path, number: int) -> None:
    chance = random.Random(f"{other.folder.name} {number}")
    kind = chance.choice(["short", "slow", "EIO", "ENOSPC", "nothing", "stuck", "corrupted"])
    fault = Fault(
        kind,
        chance.choice(["write", "read"]),
        first=chance.randrange(60),
        times=1 if kind in ("stuck", "corrupted") else 1 << 30,
        rate=1 if kind in ("stuck", "corrupted") else chance.choice([0.01, 0.1, 1]),
        seed=number,
    )
    patience = "1" if kind == "stuck" else "30"
    ended = run(other, fault, tmp_path, "--checksums", "--io-timeout", patience)
    if ended.code == 0:
        require_right(ended)
        assert kind in ("short", "slow") or not ended.hits
    else:
        require_clean(ended)
