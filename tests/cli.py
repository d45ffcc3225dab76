"""Run the command in a process of its own, as a shell would, or in this one, which is faster."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from teraio_cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

# With several threads a math library may give other bits when the machine is busy.
SERIAL = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PLAIN = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
ENVIRONMENT = os.environ | SERIAL | PLAIN
UNMEASURED = {k: v for k, v in ENVIRONMENT.items() if not k.startswith("COVERAGE_PROCESS")}
"""For a process whose ways through the code other tests go too."""

MODULE = ["-m", "teraio_cli"]
COMMAND = [sys.executable, *MODULE]


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


def here(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run `teraio WORDS` in this process and return the same; stdin is empty.

    Most of a short command's time is the start of Python. What only a fresh process shows, and
    pipes, are tested with `teraio`, and so are scripts, which change the process they run in.
    """
    arguments = ["teraio", *map(str, words)]
    with TemporaryFile() as out, TemporaryFile() as err, ExitStack() as stack:
        stack.enter_context(chdir(cwd or Path.cwd()))
        stack.enter_context(patch.dict(os.environ, PLAIN))
        stack.enter_context(patch.object(sys, "argv", arguments))
        stack.enter_context(_streams(out, err))
        try:
            main()
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        stack.close()
        written = [_content(file) for file in (out, err)]
    return subprocess.CompletedProcess(arguments, code, *written)


@contextmanager
def _streams(out: Any, err: Any) -> Iterator[None]:
    """Replace stdin, stdout and stderr: the file descriptors and what Python makes of them."""
    with ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open("rb"))
        for number, file in enumerate((nothing, out, err)):
            stack.enter_context(_descriptor(number, file.fileno()))
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = stack.enter_context(open(number, "w", encoding="utf-8", closefd=False))
            stack.enter_context(patch.object(sys, name, stream))
        yield


@contextmanager
def _descriptor(number: int, other: int) -> Iterator[None]:
    kept = os.dup(number)
    os.dup2(other, number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


def _content(file: Any) -> bytes:
    file.seek(0)
    return bytes(file.read())


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
