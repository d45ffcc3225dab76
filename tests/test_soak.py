"""A short soak; `make soak` runs thousands of steps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from example_counts import TIMES

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def benchmark() -> Any:
    path = Path(__file__).parent.parent / "benchmarks" / "soak.py"
    spec = importlib.util.spec_from_file_location("soak_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_benchmark"] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def test_nothing_grows_over_steps_that_differ(benchmark: Any, tmp_path: Path) -> None:
    measured = benchmark.soak(round(150 * TIMES), tmp_path)
    assert measured["exit_code"] == 0
    assert measured["grown"] == []
    assert measured["left_in_folder"] == []
    assert len(measured["ways"]) == 8
    assert measured["steps_that_differ"] > 20
    assert measured["moved_bytes"] > 10 << 20
    assert measured["peak_bytes"] <= measured["budget_bytes"]


def test_what_grows_is_found(benchmark: Any) -> None:
    steady = {"files": [9] * 3 + [10] * 27, "rss_bytes": [k << 10 for k in range(90)]}
    assert benchmark.grown(steady) == []
    leaky = {"files": [10 + k // 20 for k in range(60)], "ssd_used_bytes": list(range(100, 200))}
    assert [line.split()[0] for line in benchmark.grown(leaky)] == ["files", "ssd_used_bytes"]
