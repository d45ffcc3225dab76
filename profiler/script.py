"""Runs a user's script as `python SCRIPT ARGS` or `python -m MODULE ARGS` would."""

from __future__ import annotations

import importlib.util
import io
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


def run_script(script: Script) -> int:
    """Run a script to its end and return the exit code `python` would end with.

    Its uncaught exception is shown through `sys.excepthook` without teraio's own frames.
    StopScript counts as success; an interrupt or SIGTERM gives 128 + the signal. Raises the
    TeraioError that teraio itself raised inside the script.
    """
    script.require()
    with _as_main(script) as execute, _terminable():
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
            shown = error.with_traceback(_outside(error.__traceback__))
            sys.excepthook(type(shown), shown, shown.__traceback__)
            return 1
        finally:
            sys.stdout.flush()
    return 0


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
    sys.argv = [script.target, *script.arguments]
    try:
        yield _module_runner(script) if script.is_module else _file_runner(script)
    finally:
        sys.argv, sys.path[:] = argv, path
        sys.modules["__main__"] = main


def _module_runner(script: Script) -> Callable[[], None]:
    sys.path[0] = str(Path.cwd())

    def execute() -> None:
        runpy.run_module(script.target, run_name="__main__", alter_sys=True)

    return execute


def _file_runner(script: Script) -> Callable[[], None]:
    sys.path[0] = str(Path(script.target).resolve().parent)
    module = types.ModuleType("__main__")
    module.__file__ = script.target
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module

    def execute() -> None:
        with io.open_code(str(Path(script.target).resolve())) as file:
            code = compile(file.read(), script.target, "exec", dont_inherit=True)
        exec(code, module.__dict__)

    return execute


def _module_exists(name: str) -> bool:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
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


def _outside(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Drop the leading frames that are teraio's or runpy's."""
    here = str(Path(__file__).resolve())
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if Path(name).name != "runpy.py" and name != "<frozen runpy>" and _resolved(name) != here:
            break
        traceback = traceback.tb_next
    return traceback


def _resolved(name: str) -> str:
    return str(Path(name).resolve()) if name and not name.startswith("<") else name
