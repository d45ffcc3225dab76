"""`teraio profile` and `teraio run` on scripts that go wrong, and on input that is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli import MODULE, failed, here, names_in, teraio
from warm import Warm, warm_teraio

pytest.importorskip("torch")

TRAIN = """
import sys, pathlib, time, torch
width = int(sys.argv[1]) if len(sys.argv) > 1 else 256
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    loss = model(torch.randn(8, width)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), flush=True)
    if "wait" in sys.argv and step == 3:
        pathlib.Path("waiting").touch()
        time.sleep(60)
    if "raise" in sys.argv and step == 3:
        raise KeyError("of the script's own")
"""


@dataclass(frozen=True)
class Home:
    """A folder with a script, its trace, its plan and what it prints under python."""

    path: Path
    printed: bytes

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def script(self) -> Path:
        return self.path / "train.py"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    path = tmp_path_factory.mktemp("home")
    (path / "train.py").write_text(TRAIN)
    plain = Warm("train.py", cwd=path).done()
    assert plain.returncode == 0, plain.stderr.decode()
    recorded = warm_teraio("profile", "-o", "trace.parquet", "train.py", cwd=path)
    assert recorded.returncode == 0, recorded.stderr.decode()
    budget = ["--memory", "60%", "--or-minimum", "--min-tensor", "64KiB", "--policy", "greedy"]
    planned = here("plan", "trace.parquet", "-o", "plan.json", *budget, cwd=path)
    assert planned.returncode == 0, planned.stderr.decode()
    return Home(path, plain.stdout)


def run(home: Home, ssd: Path, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    return warm_teraio("run", home.plan, "--ssd", ssd, *words, cwd=ssd)


def test_the_same_output_and_nothing_left(home: Home, tmp_path: Path) -> None:
    done = teraio("run", home.plan, "--ssd", tmp_path, home.script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == home.printed
    assert names_in(tmp_path) == []


def test_options_may_stand_before_and_after_the_plan(home: Home, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--strict", "--report", report, home.plan, "--ssd", tmp_path, home.script]
    done = warm_teraio("run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(report.read_text())
    assert list(told) == [
        "steps", "ideal_ns", "predicted_step_ns", "step_ns", "stall_ns", "offloaded_bytes",
        "prefetched_bytes", "dropped_bytes", "io_path", "rates", "memory", "peak_bytes",
        "peak_by_step", "allocator", "budget_bytes", "over_budget_ops", "out_of_memory",
        "planned_actions", "executed_actions",
        "unplanned_fetches", "unplanned_evictions", "divergences", "failed_writes",
        "errors", "verified_steps",
    ]  # fmt: skip
    assert told["steps"] == len(told["step_ns"]) == 6
    assert told["executed_actions"] == told["planned_actions"] > 0
    assert told["peak_bytes"] <= told["budget_bytes"]
    assert told["offloaded_bytes"]["ssd"] > 0


def test_verified_against_a_run_without_offload(home: Home, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(home, tmp_path, "--verify", "3", "--report", report, home.script)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == home.printed
    assert json.loads(report.read_text())["verified_steps"] == 3


def test_a_program_that_is_not_deterministic_fails_verification(home: Home, tmp_path: Path) -> None:
    script = tmp_path / "unseeded.py"
    script.write_text(TRAIN.replace("torch.manual_seed(0)", "torch.seed()"))
    said = run(home, tmp_path, "--verify", "1", script)
    assert said.returncode == 77
    assert b"the gradients of optimizer step 0 differ" in said.stderr
    assert b"Traceback" not in said.stderr


def test_a_plan_for_another_program(home: Home, tmp_path: Path) -> None:
    plain = Warm(home.script, "320").done()
    done = run(home, tmp_path, home.script, "320")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == plain.stdout
    differs = b"op 1 is `aten.randn.default`; the plan has `aten.randn.default` with other shapes"
    assert differs in done.stderr
    strict = run(home, tmp_path, "--strict", home.script, "320")
    assert strict.returncode == 76
    assert b"error: 5 steps differ from the plan" in strict.stderr


@pytest.mark.parametrize("command", ["profile", "run"])
def test_a_missing_script(home: Home, tmp_path: Path, command: str) -> None:
    words = [home.plan, "--ssd", tmp_path] if command == "run" else ["-o", "t.parquet"]
    said = failed(warm_teraio(command, *words, "absent.py", cwd=tmp_path), 66)
    assert "no such script: `absent.py`" in said
    assert "hint:" in said
    said = failed(warm_teraio(command, *words, "-m", "absent", cwd=tmp_path), 66)
    assert "no such module" in said
    assert names_in(tmp_path) == []


def test_a_script_that_raises_keeps_its_complete_steps(home: Home, tmp_path: Path) -> None:
    words = ["profile", "--all", "-o", "t.parquet", home.script, "256", "raise"]
    done = warm_teraio(*words, cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert 'KeyError: "of the script\'s own"' in said
    assert said.count("File ") == 1, said
    assert here("inspect", "t.parquet", cwd=tmp_path).returncode == 0


def test_a_script_that_raises_under_a_plan(home: Home, tmp_path: Path) -> None:
    done = run(home, tmp_path, home.script, "256", "raise")
    assert done.returncode == 1
    assert b"KeyError" in done.stderr
    assert names_in(tmp_path) == []


def test_a_script_that_never_steps(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("import torch\nprint((torch.ones(3) * 2).tolist())\n")
    done = warm_teraio("profile", "-o", "t.parquet", script, cwd=tmp_path)
    assert done.returncode == 70
    assert done.stdout == b"[2.0, 2.0, 2.0]\n"
    assert b"error: the script ended before one complete step" in done.stderr
    assert names_in(tmp_path) == ["idle.py"]


def test_the_script_has_its_own_exit_code(home: Home, tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text("import sys\nsys.exit(41)\n")
    assert warm_teraio("profile", "-o", "t.parquet", script, cwd=tmp_path).returncode == 41
    assert run(home, tmp_path, script).returncode == 41


def test_a_trace_into_a_pipe(home: Home, tmp_path: Path) -> None:
    done = warm_teraio("profile", "-o", "-", home.script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout[:4] == b"PAR1"
    assert b"0 0." in done.stderr  # the script's prints
    planned = teraio("plan", "-", "-o", "-", "--memory", "100%", stdin=done.stdout)
    assert json.loads(planned.stdout)["format"] == "teraio-plan/1"


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, 66), (b"", 65), (b"{", 65), (b'{"format": "teraio-plan/9"}', 65), (b"PAR1", 65)],
)
def test_a_plan_that_is_none(home: Home, tmp_path: Path, content: bytes | None, code: int) -> None:
    plan = tmp_path / "bad.json"
    if content is not None:
        plan.write_bytes(content)
    said = failed(warm_teraio("run", plan, "--ssd", tmp_path, home.script), code)
    assert said.startswith("error: ")


@pytest.mark.parametrize("kind", ["missing", "file", "not writable"])
def test_an_ssd_folder_that_cannot_be_used(home: Home, tmp_path: Path, kind: str) -> None:
    ssd = {"missing": tmp_path / "no", "file": home.script, "not writable": Path("/proc")}[kind]
    said = failed(warm_teraio("run", home.plan, "--ssd", ssd, home.script, cwd=tmp_path), 74)
    assert str(ssd) in said
    assert "hint:" in said


def test_gds_is_refused_where_it_is_not(home: Home, tmp_path: Path) -> None:
    assert "GPUDirect" in failed(run(home, tmp_path, "--io", "gds", home.script), 74)
    assert "unknown `--io`" in failed(run(home, tmp_path, "--io", "fast", home.script), 2)


def test_outputs_are_not_replaced_unasked(home: Home, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    failed(warm_teraio("profile", "-o", "there", home.script, cwd=tmp_path), 73)
    failed(run(home, tmp_path, "--report", tmp_path / "there", home.script), 73)
    assert (tmp_path / "there").read_text() == "mine"


def test_no_script_and_no_plan(tmp_path: Path) -> None:
    assert warm_teraio("run", cwd=tmp_path).returncode == 2
    assert warm_teraio("profile", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["profile", "run"])
def test_a_signal_leaves_nothing_behind(
    home: Home, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    words = (
        ["run", home.plan, "--ssd", "."] if command == "run" else ["profile", "-o", "t", "--all"]
    )
    process = Warm(*MODULE, *words, home.script, "256", "wait", cwd=tmp_path)
    for _ in range(600):
        if (tmp_path / "waiting").exists():
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said.decode()
    assert b"Traceback" not in said
    assert names_in(tmp_path) == (["waiting"] if command == "run" else ["t", "waiting"])


def test_two_runs_in_one_folder(home: Home, tmp_path: Path) -> None:
    command = [*MODULE, "run", home.plan, "--ssd", tmp_path, home.script]
    both = [Warm(*command) for _ in range(2)]
    for process in both:
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert printed == home.printed
    assert names_in(tmp_path) == []


FULL = """
import sys
from teraio.executor.stores import posix

def full(store, extent, piece, address):
    what = f"cannot write {piece.nbytes} bytes at offset {piece.offset}"
    raise posix.io_error(what, OSError(28, "full"))

posix.PosixStore.write_piece = full
from teraio_cli.main import main
sys.argv = ["teraio", *sys.argv[1:]]
main()
"""


def test_a_drive_that_fills_up_in_mid_run(home: Home, tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    done = Warm("full.py", "run", home.plan, "--ssd", ".", home.script, cwd=tmp_path).done()
    said = done.stderr.decode()
    assert done.returncode == 74, said
    assert "Traceback" not in said
    assert "error: " in said
    assert "step " in said
    assert names_in(tmp_path) == ["full.py"]
