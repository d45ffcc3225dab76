"""`teraio simulate` through the real command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import COMMAND, ENVIRONMENT, failed, here, teraio
from traces import MIB, training_trace

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan_file import read_plan, sha256_of, write_plan
from teraio.planner.simulate import simulate
from teraio.planner.step import load_step
from teraio.profiler.trace import write_trace
from teraio_cli.simulate_tables import bar

KEYS = {
    "ops", "ideal_ns", "step_ns", "stall_ns", "stall", "steps_simulated", "steady", "plan",
    "peak_bytes", "budget", "traffic", "ssd_written_bytes", "bin_edges_ns", "channels",
    "memory_bytes_by_bin", "waits", "hardware",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, a plan for it that stalls, and traces that the plan is not for."""
    path = tmp_path_factory.mktemp("simulate")
    write_trace(training_trace(6), path / "trace")
    plan = make_plan(
        training_trace(6), sha256=sha256_of(path / "trace"), memory_bytes=20 * MIB,
        hardware=ASSUMED, policy="greedy",
    )  # fmt: skip
    assert plan.prediction.stall_ns
    write_plan(plan, path / "plan")
    write_trace(training_trace(6, op_ns=5_000_000), path / "slower")
    write_trace(training_trace(7), path / "longer")
    write_trace(training_trace(6, width=5 * MIB), path / "larger")
    return path


def simulated(folder: Path, *options: str, trace: str = "trace") -> dict[str, Any]:
    done = here("simulate", trace, "plan", "--json", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def test_json_is_what_the_library_says_and_adds_up(folder: Path) -> None:
    summary = simulated(folder)
    plan = read_plan(folder / "plan")
    simulation = simulate(load_step(training_trace(6)), plan)
    assert set(summary) == KEYS
    assert summary["step_ns"] == simulation.step_ns == plan.prediction.step_ns
    assert summary["ideal_ns"] + sum(summary["stall"].values()) == summary["step_ns"]
    assert summary["traffic"]["ssd"]["to_gpu_bytes"] == plan.prediction.ssd.to_gpu_bytes
    assert summary["ssd_written_bytes"] == plan.prediction.ssd.to_tier_bytes
    assert len(summary["bin_edges_ns"]) == 61
    for own in summary["channels"].values():
        assert len(own["busy_ns_by_bin"]) == 60
        assert sum(own["busy_ns_by_bin"]) == own["busy_ns"]
    assert max(summary["memory_bytes_by_bin"]) == summary["peak_bytes"]
    assert sum(wait["ns"] for wait in summary["waits"]) == summary["stall_ns"]


def test_tables_show_what_matters_without_colour(folder: Path) -> None:
    done = teraio("simulate", "trace", "plan", cwd=folder)
    said = done.stdout.decode()
    words = ["ideal step", "late prefetch", "bandwidth", "memory", "20.00 MiB budget", "|\n"]
    assert [word for word in words if word not in said] == []
    assert "\x1b" not in said
    assert "the plan's step" not in said
    assert done.stderr.decode() == "\nnext: teraio run plan train.py\n"


def test_bars_are_written_where_there_are_no_blocks(folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "simulate", "trace", "plan"],
        cwd=folder,
        env=ENVIRONMENT | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()


def test_other_drives_give_another_step_beside_the_plans(folder: Path) -> None:
    plan = read_plan(folder / "plan")
    slow = simulated(folder, "--ssd-read", "1GB/s")
    fast = simulated(folder, "--ssds", "3")
    assert slow["step_ns"] > plan.prediction.step_ns > fast["step_ns"]
    assert slow["hardware"]["ssd"]["read_bytes_per_s"] == 10**9
    assert slow["hardware"]["ssd"]["write_bytes_per_s"] == ASSUMED.ssd.write_bytes_per_s
    assert fast["hardware"]["ssd"]["drives"] == 3
    done = here("simulate", "trace", "plan", "--ssd-read", "1GB/s", cwd=folder)
    assert "longer than predicted" in done.stdout.decode()
    rates = "--ssd-read 1GB/s --ssd-write 6.5GB/s --host-link 25GB/s"
    words = f"next: teraio plan trace --memory {20 * MIB} {rates} -o plan.json\n"
    assert done.stderr.decode().endswith(words)


def test_the_next_plan_keeps_to_the_controls(folder: Path, tmp_path: Path) -> None:
    words = ("--memory", "50%", "--keep", "a b|^none", "--min-tensor", "2MiB", "--margin", "5%")
    done = here("plan", folder / "trace", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = here("simulate", folder / "trace", "plan.json", "--ssds", "2", "--json", cwd=tmp_path)
    said = done.stderr.decode()
    controls = f"--margin 5% --min-tensor {2 * MIB} --keep 'a b|^none' --ssds 2"
    assert controls in said
    assert said.endswith(" -o new-plan.json\n")


def test_hardware_files_replace_the_plans_rates(folder: Path) -> None:
    rates = {
        "ssd": {"read_bytes_per_s": 10**12, "write_bytes_per_s": 10**12, "latency_ns": 0},
        "host_link": {"to_host_bytes_per_s": 10**13, "to_gpu_bytes_per_s": 10**13},
        "source": {},
    }
    (folder / "hardware").write_text(json.dumps(rates))
    summary = simulated(folder, "--hardware", "hardware")
    assert summary["hardware"]["ssd"]["read_bytes_per_s"] == 10**12
    assert summary["step_ns"] < read_plan(folder / "plan").prediction.step_ns


def test_another_trace_of_the_same_program_is_noted(folder: Path) -> None:
    done = here("simulate", "slower", "plan", "--json", cwd=folder)
    assert done.stderr.decode().startswith("note: the plan was made from another trace")
    assert json.loads(done.stdout)["ideal_ns"] == 10 * simulated(folder)["ideal_ns"]


@pytest.mark.parametrize(
    ("trace", "words"),
    [("longer", "it has 30 ops, the trace 35"), ("larger", "4194304 bytes in it, 5242880 in")],
)
def test_plan_for_another_program(folder: Path, trace: str, words: str) -> None:
    said = failed(here("simulate", trace, "plan", cwd=folder), 65)
    assert "the plan is for another trace" in said
    assert words in said


@pytest.mark.parametrize("piped", ["trace", "plan"])
def test_one_of_both_comes_through_a_pipe(folder: Path, piped: str) -> None:
    words = ["-" if name == piped else name for name in ("trace", "plan")]
    content = (folder / piped).read_bytes()
    done = teraio("simulate", *words, "--json", cwd=folder, stdin=content)
    assert json.loads(done.stdout) == simulated(folder)
    assert done.stderr.decode().endswith(f"run {'PLAN' if piped == 'plan' else 'plan'} train.py\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-", "-"), 2, "cannot both be stdin"),
        (("trace", "none"), 66, "no such file: `none`"),
        (("trace", "trace"), 65, "not a plan"),
        (("plan", "plan"), 65, "not a teraio trace"),
        (("trace", "plan", "--ssd-read", "6GB"), 2, "not a rate"),
        (("trace", "plan", "--ssd-read", "0.0001B/s"), 2, "more than zero"),
        (("trace", "plan", "--bins", "0"), 2, "--bins"),
    ],
)
def test_bad_input(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in failed(here("simulate", *words, cwd=folder), code)


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (lambda kept: [], "over the budget of"),
        (lambda kept: [a | {"write": False} if "write" in a else a for a in kept], "not current"),
        (lambda kept: [a | {"gone_by_op": 0} if "write" in a else a for a in kept], "not gone"),
    ],
)
def test_a_plan_that_breaks_a_rule(folder: Path, tmp_path: Path, actions: Any, said: str) -> None:
    plan = json.loads((folder / "plan").read_text())
    plan["actions"] = actions(plan["actions"])
    plan["tensors"] = plan["tensors"] if plan["actions"] else []
    (tmp_path / "plan").write_text(json.dumps(plan))
    words = failed(here("simulate", folder / "trace", "plan", cwd=tmp_path), 65)
    assert "the plan is wrong" in words
    assert said in words


def test_more_or_fewer_bins(folder: Path) -> None:
    assert len(simulated(folder, "--bins", "7")["memory_bytes_by_bin"]) == 7


def test_bars_tell_nothing_from_little_and_nearly_all_from_all() -> None:
    low, high = bar([0, 1], [100, 100])[1:-1], bar([99, 100], [100, 100])[1:-1]
    assert low[0] == " "
    assert len({*low, *high}) == 4
