"""Runs a user's script as `python SCRIPT ARGS` or `python -m MODULE ARGS` would."""

from __future__ import annotations

import atexit
import builtins
import io
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

from teraio.profiler import tracebacks
from teraio.profiler.errors import InputMissingError, TeraioError


class StopScript(BaseException):
    """Raised inside the script to end it once enough has been recorded.

    A BaseException, so that `except Exception` in a training loop does not swallow it.
    """


class Terminated(BaseException):
    """Raised inside the script by SIGTERM."""


@dataclass(frozen=True)
class Script:
    """What to run: a path, or a module's name with `is_module`, and its own arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The words after `python`."""
        return (*(("-m",) if self.is_module else ()), self.target, *self.arguments)

    def require(self) -> None:
        """Raise InputMissingError when there is no such file or module."""
        if self.is_module:
            if not _module_exists(self.target):
                msg = f"no such module: `{self.target}`"
                raise InputMissingError(msg, hint="is its package installed in this environment?")
        elif not Path(self.target).is_file():
            msg = f"no such script: `{self.target}`"
            raise InputMissingError(msg, hint="name a Python file, or a module with `-m MODULE`")


def run_script(script: Script, *, ends_process: bool = False) -> int:
    """Run a script to its end and return the exit code `python` would end with.

    With `ends_process`, its threads and exit handlers run to their end too, while `sys.argv`,
    `sys.path` and `__main__` are still its own.

    Its uncaught exception is shown through `sys.excepthook` without teraio's own frames.
    StopScript counts as success; an interrupt or SIGTERM gives 128 + the signal. A process that
    the script forks does not return from here. Raises the TeraioError that teraio itself raised
    inside the script.
    """
    script.require()
    process = os.getpid()
    with _as_main(script) as execute, _terminable():
        exit_code = _exit_code_of(execute)
        if ends_process and os.getpid() == process:
            _finish_program()
    if os.getpid() != process:
        _leave(exit_code)
    return exit_code


def _exit_code_of(execute: Callable[[], None]) -> int:
    try:
        execute()
    except StopScript:
        return 0
    except SystemExit as error:
        return _exit_code(error.code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    except TeraioError:
        raise
    except BaseException as error:
        tracebacks.clean(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
    return 0


def _finish_program() -> None:
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()


def _leave(exit_code: int) -> NoReturn:
    """End a forked process as the interpreter would; what teraio has open is its parent's."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the script, so that nothing is left behind; its own handler wins."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: types.FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _as_main(script: Script) -> Iterator[Callable[[], None]]:
    """Give the script the `sys.argv`, `sys.path` and `__main__` it would have under `python`."""
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__dict__.update(__annotations__={}, __builtins__=builtins)
    try:
        yield _module_runner(script) if script.is_module else _file_runner(script, module)
    finally:
        sys.argv, sys.path[:] = argv, path
        sys.modules["__main__"] = main


def _module_runner(script: Script) -> Callable[[], None]:
    sys.argv = ["-m", *script.arguments]
    sys.path[0] = str(Path.cwd())

    def execute() -> None:
        runpy._run_module_as_main(script.target)  # type: ignore[attr-defined]

    return execute


def _file_runner(script: Script, module: types.ModuleType) -> Callable[[], None]:
    path = str(Path(script.target).absolute())
    sys.argv = [script.target, *script.arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    module.__dict__.update(
        __file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path)
    )

    def execute() -> None:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)

    return execute


def _module_exists(name: str) -> bool:
    """Look for a module as an import would, without importing the packages it is in."""
    parts = name.split(".")
    if "" in parts:
        return False
    sys.path.insert(0, str(Path.cwd()))
    try:
        places = None
        for prefix in accumulate(parts, "{}.{}".format):
            found = (finder.find_spec(prefix, places) for finder in sys.meta_path)
            spec = next((spec for spec in found if spec is not None), None)
            if spec is None or (prefix != name and spec.submodule_search_locations is None):
                return False
            places = spec.submodule_search_locations
        return True
    finally:
        del sys.path[0]


def _exit_code(code: object) -> int:
    """What the interpreter makes of `SystemExit.code`."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1
