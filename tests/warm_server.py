"""A Python that has imported what takes long, and forks whenever a program is to be run.

`python warm_server.py SOCKET MODULE...`, where SOCKET is the number of a file descriptor. Each
request there is a program as `python` takes it, a folder and an environment, with the program's
stdin, stdout and stderr and a pipe for its process id and how it ended. What a program does to
its process stays there; it ends as Python ends, with exit handlers and all. A brief one is spared
only the taking apart of modules and objects that comes after these.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

MOST = 1 << 20
"""Bytes of a request."""


def next_program(control: socket.socket) -> dict[str, Any]:
    """Wait for requests; return in the process that is to run one."""
    while True:
        message, files, _, _ = socket.recv_fds(control, MOST, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (child := os.fork()) == 0:
                for number, file in enumerate(files[:3]):
                    os.dup2(file, number)
                for file in files:
                    os.close(file)
                program: dict[str, Any] = json.loads(message)
                return program
            os.write(files[3], b"%d\n" % child)
            os.write(files[3], b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            os._exit(0)
        for file in files:
            os.close(file)


def settle(folder: str, environment: dict[str, str]) -> None:
    """Make this process what a new one would be."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "COVERAGE_PROCESS_CONFIG" in environment:
        import coverage

        coverage.process_startup()


def run(words: list[str]) -> None:
    """Run a program as `python WORDS` does."""
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent.absolute())
        runpy.run_path(words[0], run_name="__main__")


def run_briefly(words: list[str]) -> NoReturn:
    """Run a program and leave its process at once when it ends."""
    try:
        run(words)
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    shut_down: Any = threading
    shut_down._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked = next_program(socket.socket(fileno=int(sys.argv[1])))
    settle(asked["folder"], asked["environment"])
    (run_briefly if asked["brief"] else run)(asked["words"])
