"""Run the real command in a process of its own, as a shell would."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# With several threads a math library may give other bits when the machine is busy.
SERIAL = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ENVIRONMENT = os.environ | SERIAL | {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
COMMAND = [sys.executable, "-m", "teraio_cli"]


def teraio(
    *words: str | Path, cwd: Path | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run `teraio WORDS` and return what it wrote and how it ended."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env=ENVIRONMENT,
        timeout=120,
        check=False,
    )


def failed(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    """Check that a command failed as documented, and return what it said."""
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert done.stdout == b""
    assert "Traceback" not in said
    return said


def names_in(folder: Path) -> list[str]:
    """Return the names of everything in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())
