"""What `teraio inspect` says of a trace and of a plan, against figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli import here, teraio
from traces import MIB, T, make_trace, training_trace, with_info

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Offload, Plan
from teraio.planner.plan_file import write_plan
from teraio.profiler.trace import Trace, write_trace
from teraio_cli.plan_summary import moved_bytes, summarise_plan
from teraio_cli.tables import share
from teraio_cli.trace_summary import summarise_trace

KEYS = {
    "trace": {
        "file", "device", "device_memory_bytes", "torch", "rank", "world_size", "command",
        "runnable", "steps", "ops", "tensors", "step_ns", "peak", "active", "idle", "largest",
    },
    "plan": {
        "file", "trace", "hardware", "budget", "controls", "policy", "prediction", "endurance",
        "tensors", "actions", "moving", "first_actions",
    },
}  # fmt: skip


def _small() -> dict[str, Any]:
    """Four ops of 1 ms; a weight used at both ends, and two activations."""
    tensors = [
        T(1, 4 * MIB, "0r 3rw", kind="parameter", name="weight"),
        T(2, 2 * MIB, "0w 3r", 0, 3),
        T(3, 1000, "1w 2r", 1, 2),
    ]
    return summarise_trace(make_trace(4, tensors, workspace={1: MIB}), 2)


def test_peak_is_where_memory_and_workspace_are_most() -> None:
    assert _small()["peak"] == {
        "bytes": 7 * MIB + 1024,
        "op": 1,
        "op_name": "aten.op1",
        "phase": "forward",
        "module": "layers.1",
        "workspace_bytes": MIB,
        "by_kind": {"parameter": 4 * MIB, "activation": 2 * MIB + 1024},
    }


def test_active_bytes_are_those_ops_use() -> None:
    active = _small()["active"]
    used = [6 * MIB, MIB + 1024, 1024, 6 * MIB]
    needed = [6 * MIB, 7 * MIB + 1024, 6 * MIB + 1024, 6 * MIB]
    shares = [part / whole for part, whole in zip(used, needed, strict=True)]
    assert active == {
        "mean_bytes": sum(used) // 4,
        "max_bytes": 6 * MIB,
        "mean_share": pytest.approx(sum(shares) / 4),
        "max_share": 1.0,
    }


def test_idle_intervals_wrap_and_count_at_the_peak() -> None:
    # The weight is idle for ops 1 and 2 only: from op 3 to op 0 nothing lies between.
    assert _small()["idle"] == {
        "intervals": 2,
        "tensors": 2,
        "median_ns": 2_000_000,
        "longest_ns": 2_000_000,
        "bytes_at_peak": 6 * MIB,
    }


def test_wrapping_interval_is_measured_into_the_next_step() -> None:
    idle = summarise_trace(make_trace(4, [T(1, MIB, "1r"), T(2, MIB, "0w", 0, 0)]), 1)["idle"]
    assert idle["intervals"] == 1
    assert idle["longest_ns"] == 3_000_000
    assert idle["bytes_at_peak"] == MIB


def test_trace_in_which_nothing_is_idle() -> None:
    idle = summarise_trace(make_trace(2, [T(1, MIB, "0w 1r", 0, 1)]), 1)["idle"]
    assert idle == dict.fromkeys(idle, 0)


def test_largest_tensors_come_first_with_their_origin() -> None:
    assert _small()["largest"] == [
        {
            "id": 1, "nbytes": 4 * MIB, "kind": "parameter", "name": "weight",
            "alloc_op": None, "free_op": None, "uses": 2, "made_by": "", "made_in": "",
        },
        {
            "id": 2, "nbytes": 2 * MIB, "kind": "activation", "name": "",
            "alloc_op": 0, "free_op": 3, "uses": 2, "made_by": "aten.op0", "made_in": "layers.0",
        },
    ]  # fmt: skip


def planned(trace: Trace, memory_bytes: int) -> Plan:
    return make_plan(
        trace, sha256="0" * 64, memory_bytes=memory_bytes, hardware=ASSUMED, policy="greedy"
    )


def test_moved_bytes_leave_drops_out() -> None:
    plan = planned(training_trace(6), 12 * MIB)
    drops = [a for a in plan.actions if isinstance(a, Offload) and not a.write]
    assert drops
    cost = plan.prediction
    total = sum(moved_bytes(plan).values())
    assert total == cost.ssd.to_tier_bytes + cost.ssd.to_gpu_bytes
    summary = summarise_plan(plan, 3)
    assert sum(summary["actions"].values()) == len(plan.actions)
    assert summary["actions"]["drops"] == len(drops)
    assert len(summary["moving"]) == len(summary["first_actions"]) == 3
    moved = [tensor["moved_bytes"] for tensor in summarise_plan(plan, 99)["moving"]]
    assert moved == sorted(moved, reverse=True)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    trace = training_trace(6)
    write_trace(trace, tmp_path / "trace")
    plan = planned(trace, 40 * MIB)
    write_plan(plan, tmp_path / "plan")
    return {"trace": tmp_path / "trace", "plan": tmp_path / "plan"}


@pytest.mark.parametrize("kind", ["trace", "plan"])
def test_json_has_stable_keys_and_nothing_beside_it(kind: str, files: dict[str, Path]) -> None:
    done = here("inspect", files[kind], "--json", "--top", "2")
    summary = json.loads(done.stdout)
    assert summary["file"] == kind
    assert set(summary) == KEYS[kind]
    assert len(summary["largest" if kind == "trace" else "moving"]) == 2
    assert done.stderr.decode().startswith("\nnext: teraio ")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("trace", ["72.00 MiB at op 10", "layers.0.weight", "optimizer_state", "idle at the peak"]),
        ("plan", ["40.00 MiB", "lower bound", "% above it", "prefetch", "layers.", "assumed"]),
    ],
)
def test_tables_show_what_matters(kind: str, words: list[str], files: dict[str, Path]) -> None:
    done = teraio("inspect", files[kind])
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode()
    assert [word for word in words if word not in said] == []
    assert "\x1b" not in said


def test_plan_that_cannot_be_run_is_not_said_to_be(tmp_path: Path) -> None:
    trace = with_info(training_trace(6), fingerprint="", signatures=())
    write_trace(trace, tmp_path / "trace")
    write_plan(planned(trace, 40 * MIB), tmp_path / "plan")
    for words, following in (
        (("inspect", "plan"), "teraio simulate TRACE plan"),
        (("simulate", "trace", "plan"), "teraio export trace --plan plan"),
    ):
        said = here(*words, cwd=tmp_path).stderr.decode()
        assert said.endswith(f"so this plan cannot be run\nnext: {following}\n")


def test_share_of_nothing() -> None:
    assert share(1, 8) == "12.5%"
    assert share(0, 0) == "-"
