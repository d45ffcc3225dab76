"""Run programs that use torch in processes which need not import it: see `warm_server`."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from cli import ENVIRONMENT, MODULE, UNMEASURED

TORCH = ("torch", "torch._dynamo", "torch._inductor", "pyarrow.parquet", "typer", "rich.table")
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""As the command sets it before it imports torch, which reads it then."""


class Warm:
    """A program that runs in a process of its own; like `subprocess.Popen`, in short.

    A brief one's process is left when the program and its exit handlers have run, without taking
    Python apart, which takes as long as a short program.
    """

    def __init__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: dict[str, str] = ENVIRONMENT,
        imported: tuple[str, ...] = (),
        brief: bool = False,
    ) -> None:
        self.args = list(map(str, words))
        self._out, self._err = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        reader, writer = os.pipe()
        self._told: IO[str] = os.fdopen(reader)
        asked = {
            "words": self.args,
            "folder": str(cwd or Path.cwd()),
            "environment": dict(env),
            "brief": brief,
        }
        with TemporaryFile() as source, os.fdopen(writer, "wb") as ends:
            source.write(stdin)
            source.seek(0)
            files = [file.fileno() for file in (source, self._out, self._err, ends)]
            socket.send_fds(_server(imported), [json.dumps(asked).encode()], files)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 120) -> tuple[bytes, bytes]:
        """Wait for the end, and return what was written to stdout and stderr."""
        if not select.select([self._told], [], [], timeout)[0]:
            self.send_signal(signal.SIGKILL)
            raise subprocess.TimeoutExpired(self.args, timeout)
        with self._told, self._out, self._err:
            self.returncode = int(self._told.readline())
            self._out.seek(0)
            self._err.seek(0)
            return self._out.read(), self._err.read()

    def done(self) -> subprocess.CompletedProcess[bytes]:
        """Wait for the end; return how it came, as `subprocess.run` does."""
        written = self.communicate()
        assert self.returncode is not None
        return subprocess.CompletedProcess(self.args, self.returncode, *written)


@cache
def _server(imported: tuple[str, ...]) -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = [sys.executable, Path(__file__).with_name("warm_server.py"), str(its.fileno())]
    process = subprocess.Popen(
        [*program, *TORCH, *imported],
        env=UNMEASURED | QUIET,
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    its.close()
    atexit.register(_end, process, ours)
    return ours


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.wait()


def warm_teraio(
    *words: str | Path, cwd: Path | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run `teraio WORDS`, as `cli.teraio` does, where torch is imported already."""
    return Warm(*MODULE, *words, cwd=cwd, stdin=stdin).done()
