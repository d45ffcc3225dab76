"""`teraio sweep` through the real command."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import COMMAND, ENVIRONMENT, failed, here, teraio
from traces import MIB, training_trace

from teraio.planner.plan_file import sha256_of
from teraio.profiler.errors import UsageError
from teraio.profiler.trace import write_trace
from teraio_cli.sweep import sweep

QUICK = ("--ssd-read", "1GB/s", "--ssd-write", "1GB/s", "--policy", "g10")
LISTS = ("--memory", "16MiB,50%,30MiB", "--ssds", "1,2", *QUICK)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    write_trace(training_trace(4), path)
    return path


def test_a_row_for_each_combination(trace: Path) -> None:
    done = teraio("sweep", trace, *LISTS)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    head, *rows = done.stdout.decode().splitlines()
    assert head.split()[:3] == ["memory", "ssds", "step"]
    assert "each" not in head, "an axis with one value has no column"
    assert [row.split()[:3] for row in rows] == [
        [size, "MiB", ssds] for size in ("16.00", "24.00", "30.00") for ssds in "12"
    ]
    again = f"{trace} --memory SIZE --ssds N {' '.join(QUICK)} -o plan.json"
    assert said == f"\nnext: teraio plan {again}\n"
    assert "\x1b" not in said


def test_csv_and_json_have_the_same_figures(trace: Path) -> None:
    piped = teraio("sweep", "-", *LISTS, "--csv", "--tbw", "1TB", stdin=trace.read_bytes())
    rows = list(csv.DictReader(io.StringIO(piped.stdout.decode())))
    found = json.loads(here("sweep", trace, *LISTS, "--json", "--tbw", "1TB").stdout)
    assert found["trace"]["sha256"] == sha256_of(trace)
    assert (found["policy"], found["peak_bytes"], found["ideal_ns"]) == ("g10", 48 * MIB, 10**7)
    assert len(rows) == len(found["rows"]) == 6
    for row, same in zip(rows, found["rows"], strict=True):
        assert set(row) == set(same)
        for key in set(row) - {"seconds"}:
            assert row[key] == ("" if same[key] is None else str(same[key]))
        assert same["ssd_read_bytes_per_s"] == same["drives"] * 10**9
        assert same["ssd_write_bytes"] == same["ssd_to_tier_bytes"]
        assert same["slowdown"] == same["step_ns"] / found["ideal_ns"]
        waits = ("late_prefetch_ns", "bandwidth_ns", "memory_ns")
        assert sum(same[name] for name in waits) == same["step_ns"] - found["ideal_ns"]
        assert same["ssd_days"] > 0


def test_points_that_do_not_fit_say_what_would(trace: Path) -> None:
    words = ("sweep", trace, "--memory", "1MiB,30MiB", *QUICK)
    done = here(*words)
    assert done.returncode == 0
    assert "needs 12.00 MiB" in done.stdout.decode().splitlines()[1]
    low, fits = json.loads(here(*words, "--json").stdout)["rows"]
    assert (low["least_bytes"], low["step_ns"]) == (12 * MIB, None)
    assert "no plan fits 1048576 bytes" in low["reason"]
    assert (fits["least_bytes"], fits["reason"], fits["plan_of"]) == (None, "", None)


def test_nothing_fits(trace: Path) -> None:
    done = here("sweep", trace, "--memory", "1MiB,2MiB", "--csv", *QUICK)
    said = done.stderr.decode()
    assert done.returncode == 69
    assert len(done.stdout.splitlines()) == 3
    assert f"no plan fits any of the 2 combinations: the least possible is {12 * MIB} by" in said
    assert "Traceback" not in said


def test_with_little_host_memory_at_least_so_much_is_needed(trace: Path) -> None:
    words = ("--host-memory", "8MiB", "--tiers", "host", *QUICK)
    done = here("sweep", trace, "--memory", "1MiB", *words)
    assert "needs at least 40.00 MiB" in done.stdout.decode()
    said = done.stderr.decode()
    assert "at least 41943040 bytes (40.00 MiB) are needed" in said
    assert "--or-minimum" in said


def test_host_memory_has_an_axis(trace: Path) -> None:
    words = ("--host-memory", "0,8MiB,1GiB", "--host-link", "10GB/s,20GB/s")
    done = here("sweep", trace, "--memory", "24MiB", *words, *QUICK)
    head, *rows = done.stdout.decode().splitlines()
    for name in ("host memory", "host link", "to ssd"):
        assert name in head
    assert len(rows) == 6
    only = here("sweep", trace, "--memory", "24MiB", *words, "--tiers", "host", *QUICK)
    assert "there is none for them" in failed(only, 2)


def test_usage_errors_of_the_command(trace: Path) -> None:
    words = ("sweep", trace, "--memory", "16MiB,16777216")
    assert "`16MiB` and `16777216`, which is the same twice" in failed(here(*words), 2)
    assert "--memory" in failed(here("sweep", trace), 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": ""}, "a value of `--memory` is missing"),
        ({"memory": "16MiB,"}, "a value of `--memory` is missing"),
        ({"memory": "16MiB,0"}, "more than zero"),
        ({"ssds": "1,0"}, "not a whole number above zero: `0`"),
        ({"ssds": "2,two"}, "not a whole number above zero: `two`"),
        ({"ssd_read": "1GB/s,-1GB/s"}, "more than zero"),
        ({"ssd_write": "1GB/s,1GB"}, "not a rate"),
        ({"host_link": "1GB/s,1000MB/s"}, "the same twice"),
        ({"host_memory": "1GiB,1GiB"}, "the same twice"),
        ({"policy": "best"}, "unknown policy: `best`"),
        ({"as_json": True, "as_csv": True}, "exclude each other"),
        ({"plot": "s.jpeg"}, "the ending says in which format"),
        (
            {
                "memory": ",".join(f"{n}MiB" for n in range(1, 101)),
                "ssds": ",".join(map(str, range(1, 102))),
            },
            "10,100 combinations are too many",
        ),
    ],
)
def test_usage_errors(options: dict[str, Any], words: str, trace: Path) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        sweep(str(trace), **{"memory": "1GiB"} | options)
    assert raised.value.hint


def test_progress_is_shown_on_a_terminal(trace: Path) -> None:
    reader, writer = pty.openpty()
    words = [*COMMAND, "sweep", str(trace), *LISTS]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=writer, env=ENVIRONMENT, check=True)
    os.close(writer)
    shown = os.read(reader, 10_000).decode()
    os.close(reader)
    assert "1 of 6 points" in shown
    assert "6 of 6 points\r\x1b[K" in shown
    assert b"points" not in done.stdout
