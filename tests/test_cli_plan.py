"""`teraio plan` through the real command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli import ENVIRONMENT, failed, here, names_in, teraio
from traces import MIB, training_trace, with_info

from teraio.planner.plan_file import read_plan, sha256_of
from teraio.profiler.errors import UsageError
from teraio.profiler.trace import write_trace
from teraio_cli.plan_options import parse_share

HARDWARE = {
    "ssd": {"read_bytes_per_s": 3 * 10**9, "write_bytes_per_s": 2 * 10**9, "latency_ns": 5},
    "host_link": {"to_host_bytes_per_s": 10**10, "to_gpu_bytes_per_s": 10**10},
    "source": {"ssd": "measured", "host_link": "measured"},
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    write_trace(training_trace(6), path)
    return path


def test_plan_is_written_and_explained(trace: Path, tmp_path: Path) -> None:
    done = teraio("plan", trace.name, "--memory", "60%", cwd=tmp_path)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (0, b""), said
    plan = read_plan(tmp_path / "plan.json")
    peak = 72 * MIB
    assert plan.budget.memory_bytes == peak * 60 // 100
    assert plan.trace.sha256 == sha256_of(trace)
    assert plan.actions
    assert said.startswith("peak         72.00 MiB without, ")
    above = plan.prediction.step_ns / plan.prediction.lower_bound_ns - 1
    assert re.search(rf"lower bound  [^\n]+ms, the plan is {above:.1%} above it\n", said)
    assert "rates        ssd assumed" in said
    assert said.endswith("\n\nnext: teraio run plan.json train.py\n")
    assert names_in(tmp_path) == ["plan.json", "trace.parquet"]


def test_pipes_carry_the_plan_and_nothing_else(trace: Path, tmp_path: Path) -> None:
    words = ("--memory", "60%", "--policy", "greedy", "-o", "-")
    piped = teraio("plan", "-", *words, stdin=trace.read_bytes())
    assert piped.returncode == 0
    assert piped.stdout == teraio("plan", trace, *words).stdout
    assert json.loads(piped.stdout)["format"] == "teraio-plan/1"
    assert piped.stderr.decode().endswith("next: teraio run PLAN train.py\n")
    shown = teraio("inspect", "-", "--json", stdin=piped.stdout)
    assert json.loads(shown.stdout)["file"] == "plan"


def test_options_reach_the_planner(trace: Path, tmp_path: Path) -> None:
    hardware = tmp_path / "hardware.json"
    hardware.write_text(json.dumps(HARDWARE))
    done = here(
        "plan", trace, "--memory", "50MiB", "--host-memory", "8MiB", "--hardware", hardware,
        "--ssd-write", "1GB/s", "--policy", "greedy", "--min-tensor", "2MiB", "--margin", "5%",
        "-o", "p.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = read_plan(tmp_path / "p.json")
    assert (plan.budget.memory_bytes, plan.budget.host_bytes) == (50 * MIB, 8 * MIB)
    assert plan.budget.margin == 0.05
    assert plan.policy.name == "greedy"
    assert plan.hardware.ssd.read_bytes_per_s == 3 * 10**9
    assert plan.hardware.ssd.write_bytes_per_s == 10**9
    assert plan.hardware.source["ssd.write_bytes_per_s"] == "given"


def test_step_that_fits_has_nothing_to_move(trace: Path, tmp_path: Path) -> None:
    done = here("plan", trace, "--memory", "1GiB", cwd=tmp_path)
    assert "none has to move" in done.stderr.decode()
    assert read_plan(tmp_path / "plan.json").actions == ()


def test_budget_under_the_possible(trace: Path, tmp_path: Path) -> None:
    words = ("plan", trace, "--memory", "1MiB", "--policy", "greedy")
    said = failed(here(*words, cwd=tmp_path), 69)
    least = 12 * MIB
    assert f"least possible is {least} bytes" in said
    assert "aten.op" in said
    assert "parameter layers." in said
    assert names_in(tmp_path) == ["trace.parquet"]
    done = here(*words, "--or-minimum", cwd=tmp_path)
    assert "budget       12.00 MiB, the least possible" in done.stderr.decode()
    assert read_plan(tmp_path / "plan.json").budget.memory_bytes == least


def test_existing_output_needs_force(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    output.write_text("mine")
    words = ("plan", trace, "--memory", "60%", "--policy", "greedy")
    assert "--force" in failed(here(*words, cwd=tmp_path), 73)
    assert output.read_text() == "mine"
    assert here(*words, "--force", cwd=tmp_path).returncode == 0
    assert read_plan(output).actions


def test_folder_that_cannot_be_written(trace: Path) -> None:
    words = ("plan", trace, "--memory", "60%", "--policy", "greedy", "-o", "/proc/plan.json")
    assert "cannot write `/proc/plan.json`" in failed(teraio(*words), 74)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--memory", "24Gx"), "unknown unit `Gx`"),
        (("--memory", "lots"), "not a number"),
        (("--memory", "0"), "more than zero"),
        (("--memory", "1GiB", "--ssd-read", "6.7GB"), "not a rate"),
        (("--memory", "1GiB", "--host-memory", "-1GiB"), "more than zero"),
        (("--memory", "1GiB", "--margin", "100%"), "not a percentage"),
        (("--memory", "1GiB", "--policy", "best"), "unknown policy: `best`"),
        ((), "--memory"),
        (("--memory", "1GiB", "--what"), "--what"),
    ],
)
def test_usage_errors(options: tuple[str, ...], words: str, trace: Path, tmp_path: Path) -> None:
    assert words in failed(here("plan", trace, *options, cwd=tmp_path), 2)
    assert names_in(tmp_path) == ["trace.parquet"]


def test_bad_hardware_file(trace: Path, tmp_path: Path) -> None:
    words = ("plan", trace, "--memory", "60%", "--hardware", "hardware.json")
    failed(here(*words, cwd=tmp_path), 66)
    (tmp_path / "hardware.json").write_text('{"ssd": {}}')
    assert "`host_link` is missing" in failed(here(*words, cwd=tmp_path), 65)


def test_trace_without_fingerprint_makes_a_plan_that_cannot_be_run(tmp_path: Path) -> None:
    path = tmp_path / "imported.parquet"
    write_trace(with_info(training_trace(4), fingerprint="", signatures=()), path)
    said = here("plan", path, "--memory", "60%", "--policy", "greedy", cwd=tmp_path).stderr.decode()
    assert "cannot be run" in said
    assert said.endswith("next: teraio inspect plan.json\n")


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("12.5", 0.125), ("0", 0.0), ("0.5%", 0.005)]
)
def test_parse_share(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "%", "-1%", "100", "nan", "inf", "x", "0.05"])
def test_parse_share_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_share(text)


@pytest.fixture
def no_solver(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("modules")
    for name in ("highspy", "pulp"):
        (folder / f"{name}.py").write_text(f"raise ImportError('no {name} here')\n")
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(folder))


@pytest.mark.usefixtures("no_solver")
def test_ilp_without_a_solver_writes_another_plan_and_says_so(trace: Path, tmp_path: Path) -> None:
    slow = ("--memory", "60%", "--ssd-read", "100MB/s", "--ssd-write", "100MB/s")
    said = failed(teraio("plan", trace.name, *slow, "--policy", "ilp", cwd=tmp_path), 69)
    assert "error: no solver is installed" in said
    assert "hint: HiGHS comes with `pip install highspy`" in said
    assert read_plan(tmp_path / "plan.json").policy.name == "ilp"


@pytest.mark.usefixtures("no_solver")
def test_auto_needs_no_solver(trace: Path, tmp_path: Path) -> None:
    slow = ("--memory", "60%", "--ssd-read", "100MB/s", "--ssd-write", "100MB/s")
    done = teraio("plan", trace.name, *slow, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
