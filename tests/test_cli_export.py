"""`teraio export` through the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli import failed, here, names_in, teraio
from traces import training_trace

from teraio.profiler.trace import write_trace

QUICK = ("--policy", "greedy")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet"
    write_trace(training_trace(6), path)
    return path


def test_a_trace_and_its_plan_are_exported(trace: Path, tmp_path: Path) -> None:
    done = teraio("export", trace, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    alone = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in alone} == {"M", "X", "C"}
    assert "next: " in done.stderr.decode()
    assert teraio("plan", trace, "--memory", "60%", *QUICK, cwd=tmp_path).returncode == 0
    words = ("export", "--plan", "plan.json", "-o", "-")
    both = teraio(*words, "-", stdin=trace.read_bytes(), cwd=tmp_path)
    events = json.loads(both.stdout)["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C", "b", "e"}
    assert "exists" in failed(teraio("export", trace, cwd=tmp_path), 73)


def test_a_plan_of_another_trace_is_refused(trace: Path, tmp_path: Path) -> None:
    write_trace(training_trace(5), tmp_path / "other.parquet")
    assert here("plan", "other.parquet", "--memory", "60%", *QUICK, cwd=tmp_path).returncode == 0
    said = failed(here("export", trace, "--plan", "plan.json", cwd=tmp_path), 65)
    assert "the plan is for another trace: `plan.json` was not made from" in said
    assert "trace.json" not in names_in(tmp_path)


def test_inputs_that_cannot_be(trace: Path, tmp_path: Path) -> None:
    assert "cannot both be stdin" in failed(here("export", "-", "--plan", "-"), 2)
    failed(here("export", tmp_path / "none"), 66)
    said = failed(here("export", trace, "--plan", trace, cwd=tmp_path), 65)
    assert "not a plan" in said
