"""`teraio clean`: what killed runs left goes, all else stays."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from cli import failed, here, names_in, teraio

from teraio.executor.run_folder import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

KILLED = """
import os, signal, sys
from pathlib import Path
from teraio.executor.run_folder import RunFolder
folder = RunFolder.create(Path(sys.argv[1]))
(folder.path / "data-0").write_bytes(bytes(1 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _killed_run(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)


def test_clean_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    _killed_run(tmp_path)
    (tmp_path / "mine").touch()
    done = teraio("clean", tmp_path)
    assert done.returncode == 0
    said = done.stdout.decode()
    assert said.startswith(f"removed {tmp_path}/teraio-")
    assert said.endswith(": 1.00 MiB freed\n")
    assert names_in(tmp_path) == ["mine"]


def test_clean_keeps_a_run_that_is_alive(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    try:
        rows = json.loads(here("clean", tmp_path, "--json").stdout)
        assert rows == [{"path": str(run.path), "freed_bytes": 0, "kept": "in use"}]
        said = here("clean", tmp_path).stdout.decode()
        assert said == f"kept {run.path}: in use\n"
        assert run.path.is_dir()
    finally:
        run.close()


def test_nothing_to_clean(tmp_path: Path) -> None:
    done = here("clean", tmp_path)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"nothing to clean\n"


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in failed(here("clean", tmp_path / "none"), 74)
