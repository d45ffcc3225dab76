"""What is measured is a hardware file, and measuring leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from raw_memory import nothing_leaks

from teraio.executor.bandwidth import measure
from teraio.planner.fields import Fields
from teraio.planner.hardware import hardware_from
from teraio.profiler.errors import StorageError

MIB = 1 << 20
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "posix_store.py"


def test_a_measurement_is_a_hardware_file(tmp_path: Path) -> None:
    with nothing_leaks():
        result = measure([tmp_path, tmp_path], total_bytes=5 * MIB)
    assert json.loads(json.dumps(result)) == result
    hardware = hardware_from(Fields(result, "hardware", "test", ""))
    assert hardware.ssd.read_bytes_per_s > 0
    assert hardware.ssd.write_bytes_per_s > 0
    assert hardware.ssd.latency_ns > 0
    assert hardware.host_link.to_host_bytes_per_s > 0
    assert hardware.host_link.to_gpu_bytes_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_the_source_says_where_and_how_it_was_measured(tmp_path: Path) -> None:
    source = measure([tmp_path], total_bytes=MIB)["source"]
    assert str(source["ssd"]).startswith(f"measured: {tmp_path}, posix-")
    assert "1.00 MiB, alone: read " in str(source["ssd"])
    assert str(source["host_link"]).startswith("measured: host memory copy, no GPU, 1.00 MiB")


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with nothing_leaks(), pytest.raises(StorageError, match=f"cannot use `{tmp_path}/none`"):
        measure([tmp_path / "none"])


@pytest.mark.parametrize("options", [[], ["--sweep"]])
def test_the_benchmark_runs_and_leaves_only_its_result(tmp_path: Path, options: list[str]) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    result = tmp_path / "result.json"
    command = [sys.executable, BENCHMARK, drive, "--mib=8", "--rounds=1", "-o", result, *options]
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True)
    if "no direct I/O" in done.stderr:
        pytest.skip("the file system of the test folder takes no direct I/O")
    assert done.returncode == 0, done.stderr
    assert list(drive.iterdir()) == []
    if options:
        assert len(done.stdout.splitlines()) == 31
        return
    ways = json.loads(result.read_text())["results"]
    for way in ("write", "read"):
        assert ways[way]["dd"]["of_dd"] == 1.0
        assert ways[way]["store, torch"]["gb_per_s"] > 0
