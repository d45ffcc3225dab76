"""Runs that are killed, runs beside each other, and drives that are full or closed to them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli import MODULE, UNMEASURED, failed, here, names_in
from example_counts import TIMES
from warm import Warm, warm_teraio

from teraio.profiler.launcher import number_in

pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRAIN = """
import pathlib, sys, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])
optimizer = torch.optim.Adam(model.parameters())
for step in range(5 if len(sys.argv) < 3 else int(sys.argv[2])):
    loss = model(torch.randn(64, 128)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), flush=True)
    if step == 3 and len(sys.argv) > 1 and sys.argv[1]:
        pathlib.Path(sys.argv[1]).touch()
        while pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "train.py").write_text(TRAIN)
    recorded = warm_teraio("profile", "-o", "trace.parquet", "train.py", cwd=home)
    assert recorded.returncode == 0, recorded.stderr.decode()
    budget = ["--memory", "60%", "--or-minimum", "--min-tensor", "16KiB", "--policy", "greedy"]
    planned = here("plan", "trace.parquet", "-o", "plan.json", *budget, cwd=home)
    assert planned.returncode == 0, planned.stderr.decode()
    (home / "printed").write_bytes(Warm("train.py", cwd=home).done().stdout)
    return home


def started(home: Path, ssd: Path, *words: str, env: dict[str, str] | None = None) -> Warm:
    command = [*MODULE, "run", home / "plan.json", "--ssd", ssd, home / "train.py", *words]
    return Warm(*command, cwd=home, env=UNMEASURED | (env or {}))


def until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def living_run(home: Path, ssd: Path) -> Iterator[str]:
    """A run that goes on, in the middle of its steps, until the block ends; gives its folder."""
    flag = ssd.parent / "going on"
    process = started(home, ssd, str(flag))
    try:
        until(flag.exists)
    except AssertionError:
        process.send_signal(signal.SIGINT)
        pytest.fail(process.communicate()[1].decode())
    (name,) = names_in(ssd)
    yield name
    flag.unlink()
    printed, said = process.communicate()
    assert process.returncode == 0, said.decode()
    assert printed == (home / "printed").read_bytes()


def test_what_killed_runs_leave_is_cleaned_beside_a_living_one(home: Path, tmp_path: Path) -> None:
    """Killed at random moments: one of each two from its start on, the other while it trains."""
    ssd = tmp_path / "ssd"
    ssd.mkdir()
    chance = random.Random(7)
    with living_run(home, ssd) as alive:
        for _ in range(max(1, round(5 * TIMES))):
            for trains in (False, True):
                process = started(home, ssd, "", "1000")
                if trains:
                    until(lambda: len(names_in(ssd)) > 1)
                time.sleep(chance.uniform(0, 0.5))
                process.send_signal(signal.SIGKILL)
                process.communicate()
                assert process.returncode == -signal.SIGKILL
            assert 2 <= len(names_in(ssd)) <= 3
            rows = json.loads(here("clean", ssd, "--json").stdout)
            assert [row["kept"] for row in rows if row["path"] == str(ssd / alive)] == ["in use"]
            assert names_in(ssd) == [alive]
    assert names_in(ssd) == []


def test_eight_ranks_in_one_folder_while_it_is_cleaned(home: Path, tmp_path: Path) -> None:
    ranks = [
        started(home, tmp_path, env={"LOCAL_RANK": str(rank), "RANK": str(rank + 8)})
        for rank in range(8)
    ]
    seen: set[str] = set()

    def are_over() -> bool:
        names = names_in(tmp_path)
        seen.update(names)
        rows = json.loads(here("clean", tmp_path, "--json").stdout)
        assert {row["kept"] for row in rows} <= {"in use"}
        return len(seen) == len(ranks) and not names

    until(are_over)
    for process in ranks:
        printed, said = process.communicate()
        assert process.returncode == 0, said.decode()
        assert printed == (home / "printed").read_bytes()
    assert {name.rpartition("-")[2] for name in seen} == {f"rank{rank}" for rank in range(8)}


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"LOCAL_RANK": "1", "RANK": "9"}, 1),
        ({"RANK": "3"}, 3),
        ({"LOCAL_RANK": "-1", "RANK": "2"}, 2),
        ({"LOCAL_RANK": "first"}, 0),
        ({"LOCAL_RANK": "9" * 5000}, 0),
        ({}, 0),
    ],
)
def test_a_rank_that_is_no_number_is_none(environment: dict[str, str], rank: int) -> None:
    assert number_in(environment, "LOCAL_RANK", "RANK") == rank
    assert number_in({"WORLD_SIZE": ""}, "WORLD_SIZE", default=1) == 1


# Drives that are full or closed

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from teraio_cli.main import main
sys.argv = ["teraio", *sys.argv[2:]]
main()
"""


def test_files_that_may_not_become_as_large(home: Path, tmp_path: Path) -> None:
    words = ["run", home / "plan.json", "--ssd", tmp_path, home / "train.py"]
    done = Warm("-c", LIMITED, str(1 << 20), *words, cwd=home).done()
    said = failed(done, 74)
    assert f"in `{tmp_path}`" in said
    assert "EFBIG" in said
    assert names_in(tmp_path) == []


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small file system of its own, where the user may make one."""
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_drive_too_small_for_the_plan(home: Path, tmp_path: Path) -> None:
    with mounted(tmp_path, "size=64k"):
        done = warm_teraio("run", home / "plan.json", "--ssd", tmp_path, home / "train.py")
        said = failed(done, 74)
        assert f"bytes in `{tmp_path}`, which has " in said
        assert "hint: free some space there" in said
        assert names_in(tmp_path) == []


def test_a_drive_that_is_read_only(home: Path, tmp_path: Path) -> None:
    with mounted(tmp_path, "ro,size=64k"):
        done = warm_teraio("run", home / "plan.json", "--ssd", tmp_path, home / "train.py")
        assert f"cannot use `{tmp_path}` for offloaded tensors: EROFS" in failed(done, 74)
        cleaned = here("clean", tmp_path)
        assert (cleaned.returncode, cleaned.stderr) == (0, b"nothing to clean\n")
