"""`teraio compare` through the real command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli import failed, here, names_in, teraio
from traces import MIB, training_trace

from teraio.planner.compare import COMPARED
from teraio.planner.plan_file import sha256_of
from teraio.profiler.errors import UsageError
from teraio.profiler.trace import write_trace
from teraio_cli.compare import compare
from teraio_cli.lists import parse_count, parse_list, split_list

PEAK = 48 * MIB
SLOW = ("--memory", "50%", "--ssd-read", "1GB/s", "--ssd-write", "1GB/s", "--time-limit", "2")
QUICK = (*SLOW, "--policies", "lru,g10")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    write_trace(training_trace(4), path)
    return path


def test_a_table_with_the_ideal_and_the_bound_first(trace: Path) -> None:
    done = teraio("compare", trace, *SLOW)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    lines = done.stdout.decode().splitlines()
    head = lines[0].split()
    assert head[:3] == ["policy", "step", "slowdown"]
    assert lines[1].split()[:4] == ["ideal", "10.0", "ms", "1.000x"]
    assert lines[2].startswith("lower bound")
    blank = lines.index("")
    rows = {line.split()[0] for line in lines[3:blank]}
    lacking = {line.split()[0] for line in lines[blank + 2 :]}
    assert lines[blank + 1].split() == ["no", "plan", "because"]
    assert rows | lacking == set(COMPARED)
    assert "zero-offload" in lacking
    assert "\nbudget  24.00 MiB\nrates   ssd rates given, latency assumed; host link" in said
    assert max(map(len, lines[:blank])) <= 80
    best = lines[3].split()[0]
    assert said.endswith(
        f"\nnext: teraio plan {trace} {' '.join(SLOW)} --policy {best} -o plan.json\n"
    )
    assert "\x1b" not in said, "progress is for terminals"


def test_json_has_the_same_and_more(trace: Path) -> None:
    done = teraio("compare", "-", *QUICK, "--json", "--tbw", "10TB", stdin=trace.read_bytes())
    found = json.loads(done.stdout)
    assert found["trace"]["sha256"] == sha256_of(trace)
    assert found["budget"] == {"memory_bytes": PEAK // 2, "host_bytes": 0, "margin": 0.0}
    assert found["hardware"]["ssd"]["read_bytes_per_s"] == 10**9
    assert {row["policy"] for row in found["rows"]} == {"lru", "g10"}
    for row in found["rows"]:
        outcome = row["outcome"]
        assert outcome["step_ns"] >= found["lower_bound_ns"] == outcome["lower_bound_ns"]
        assert outcome["ssd_write_bytes"] == outcome["ssd"]["to_tier_bytes"] > 0
        assert outcome["ssd_days"] > 0
        assert set(outcome["stall"]) == {"late_prefetch_ns", "bandwidth_ns", "memory_ns"}


def test_options_reach_the_planner(trace: Path) -> None:
    words = ("--host-memory", "1GiB", "--tiers", "host", "--keep", "layers.0", "--margin", "10%")
    done = here("compare", trace, *SLOW, *words, "--policies", "auto", "--json")
    found = json.loads(done.stdout)
    outcome = found["rows"][0]["outcome"]
    assert found["budget"]["margin"] == 0.1
    assert outcome["peak_bytes"] <= PEAK * 0.45
    assert outcome["ssd"] == dict.fromkeys(outcome["ssd"], 0)
    assert outcome["host"]["to_gpu_bytes"] > 0


def test_budget_under_the_possible(trace: Path) -> None:
    words = ("compare", trace, "--memory", "1MiB", "--policies", "lru,g10")
    done = here(*words)
    said = done.stderr.decode()
    assert done.returncode == 69
    assert b"lower bound" in done.stdout
    assert b"no plan fits 1048576 bytes" in done.stdout
    assert f"the least possible is {12 * MIB} bytes" in said
    assert "--or-minimum" in said
    least = here(*words, "--or-minimum", "--json")
    assert json.loads(least.stdout)["budget"]["memory_bytes"] == 12 * MIB


def test_only_policies_without_a_plan(trace: Path) -> None:
    done = here("compare", trace, *SLOW, "--policies", "keep")
    assert done.returncode == 69
    assert b"keep" in done.stdout
    assert "no policy has a plan for 25165824 bytes" in done.stderr.decode()


def test_usage_errors_of_the_command(trace: Path, tmp_path: Path) -> None:
    said = failed(here("compare", trace, *SLOW, "--policies", "lru,best", cwd=tmp_path), 2)
    assert "unknown policy: `best`" in said
    assert "hint: the policies are auto, greedy" in said
    assert "--memory" in failed(here("compare", trace, cwd=tmp_path), 2)
    assert names_in(tmp_path) == ["trace.parquet"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policies": ""}, "a value of `--policies` is missing"),
        ({"policies": "lru,,g10"}, "a value of `--policies` is missing"),
        ({"policies": "lru,lru"}, "named twice"),
        ({"memory": "0"}, "more than zero"),
        ({"margin": "120%"}, "not a percentage"),
        ({"time_limit": 0}, "time limit must be more than zero"),
        ({"plot": "picture.gif"}, "the ending says in which format"),
        ({"plot": "-"}, "the ending says in which format"),
    ],
)
def test_usage_errors(options: dict[str, Any], words: str, trace: Path) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        compare(str(trace), **{"memory": "50%", "policies": "lru"} | options)
    assert raised.value.hint


@pytest.mark.parametrize("text", ["", " ", ",", "a,", ",a", "a, ,b"])
def test_lists_with_holes(text: str) -> None:
    with pytest.raises(UsageError, match="a value of `--x` is missing"):
        split_list("--x", text)


def test_lists() -> None:
    assert split_list("--x", " a, b ,c") == ["a", "b", "c"]
    assert parse_list("--x", "4, 2", parse_count) == (4, 2)
    with pytest.raises(UsageError, match="`--x` has `2` and `02`, which is the same twice"):
        parse_list("--x", "2,3,02", parse_count)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "1" * 10, "²"])
def test_counts_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a whole number above zero"):
        parse_count(text)
