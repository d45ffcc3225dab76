"""A script sees under teraio what it sees under `python`: compared side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from teraio.profiler import tracebacks
from teraio.profiler.errors import InputMissingError, StorageError
from teraio.profiler.opstream import OpStream
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.script import Script, StopScript, run_script
from teraio.profiler.storages import Block, StorageTable

DRIVER = """
import sys
from teraio.profiler.script import Script, run_script
words = sys.argv[1:]
is_module = words[0] == "-m"
target, *rest = words[is_module:]
sys.exit(run_script(Script(target, tuple(rest), is_module)))
"""
DRIVEN = [sys.executable, "-c", DRIVER]


def both(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script plainly and driven; check that nobody could tell the difference."""
    plain, driven = (
        subprocess.run(
            [*start, *words],
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for start in ([sys.executable], DRIVEN)
    )
    assert driven.stdout == plain.stdout
    assert driven.stderr == plain.stderr
    assert driven.returncode == plain.returncode
    return plain


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


SURROUNDINGS = """
import inspect, pickle, sys
names = {k: repr(v).split(" at 0x")[0] for k, v in sorted(globals().items()) if k != "sys"}
print(names)
print(sys.argv, sys.path, sorted(vars(sys.modules["__main__"])))
class Kept:
    answer = 42
print(pickle.loads(pickle.dumps(Kept())).answer, pickle.dumps(Kept()))
print(inspect.getsource(Kept), Kept.__module__)
import __main__
assert __main__.Kept is Kept
"""


@pytest.mark.parametrize("words", [("a.py", "--lr", "3e-4", "-"), ("sub/b.py",), ("sub/link.py",)])
def test_a_file_sees_the_same_surroundings(tmp_path: Path, words: tuple[str, ...]) -> None:
    write(tmp_path, "a.py", SURROUNDINGS)
    write(tmp_path, "sub/b.py", SURROUNDINGS)
    (tmp_path / "sub" / "link.py").symlink_to("../a.py")
    both(tmp_path, *words)


@pytest.mark.parametrize("module", ["pack", "pack.train", "alone"])
def test_a_module_sees_the_same_surroundings(tmp_path: Path, module: str) -> None:
    write(tmp_path, "pack/__init__.py", "import sys; print('imported', sys.argv)")
    for name in ("pack/__main__.py", "pack/train.py", "alone.py"):
        write(tmp_path, name, SURROUNDINGS)
    both(tmp_path, "-m", module, "--lr", "3e-4")


def test_the_path_of_a_script_may_be_absolute(tmp_path: Path) -> None:
    write(tmp_path, "a.py", SURROUNDINGS)
    both(Path("/"), str(tmp_path / "a.py"))


def test_modules_beside_the_script_come_first(tmp_path: Path) -> None:
    write(tmp_path, "sub/planner.py", "print('the user\\'s planner', __name__)")
    write(tmp_path, "sub/a.py", "import planner")
    assert "the user's" in both(tmp_path, "sub/a.py").stdout


@pytest.mark.parametrize(
    "last",
    ["", "sys.exit()", "sys.exit(0)", "sys.exit(3)", "sys.exit(-1)", "sys.exit(256 + 7)",
     "sys.exit(True)", "sys.exit('no data')", "sys.exit(('a', 1))", "raise SystemExit",
     "sys.exit(os.EX_USAGE)", "os._exit(9)"],
)  # fmt: skip
def test_exit_codes(tmp_path: Path, last: str) -> None:
    both(
        tmp_path, write(tmp_path, "a.py", f"import os, sys\nprint('before', flush=True)\n{last}\n")
    )


RAISES = {
    "plain": "def f():\n    raise ValueError('lr < 0')\nf()\n",
    "cause": "try:\n    {}[1]\nexcept KeyError as e:\n    raise ValueError('x') from e\n",
    "context": "try:\n    {}[1]\nexcept KeyError:\n    1 / 0\n",
    "suppressed": "try:\n    {}[1]\nexcept KeyError:\n    raise ValueError from None\n",
    "group": "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])\n",
    "syntax": "print('x'\n",
    "import": "import no_such_module\n",
    "assertion": "assert 1 == 2, 'unequal'\n",
    "note": "e = ValueError('a')\ne.add_note('look here')\nraise e\n",
    "base": "class Odd(BaseException): pass\nraise Odd('x')\n",
    "hook": "import sys\nsys.excepthook = lambda t, e, tb: print(t, e, tb.tb_lineno)\n1 / 0\n",
    "recursion": "def f(): f()\nimport sys\nsys.setrecursionlimit(90)\nf()\n",
    "warning": "import warnings\nwarnings.warn('careful')\n",
}


@pytest.mark.parametrize("name", [name for name in RAISES if name != "recursion"])
def test_what_is_raised_is_shown_as_ever(tmp_path: Path, name: str) -> None:
    done = both(tmp_path, write(tmp_path, "a.py", RAISES[name]))
    assert done.returncode == (name != "warning")
    assert "teraio" not in done.stderr.replace(str(tmp_path), "")


def test_what_a_module_raises_is_shown_as_ever(tmp_path: Path) -> None:
    write(tmp_path, "pack/__init__.py", "")
    write(tmp_path, "pack/__main__.py", RAISES["plain"])
    both(tmp_path, "-m", "pack")


def test_runaway_recursion_ends_with_its_own_error(tmp_path: Path) -> None:
    write(tmp_path, "a.py", RAISES["recursion"])
    done = subprocess.run([*DRIVEN, "a.py"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"RecursionError" in done.stderr
    assert b"script.py" not in done.stderr


def test_stdin_stdout_and_stderr_are_the_scripts(tmp_path: Path) -> None:
    text = "import sys\nfor line in sys.stdin: print(line[::-1], end='', file=sys.stderr)\n"
    text += "print('häß', flush=True)\nsys.stdout.write('no newline')\n"
    assert both(tmp_path, write(tmp_path, "a.py", text), stdin="ab\ncd\n").stderr == "\nba\ndc"


def test_threads_and_exit_handlers_outlive_the_last_line(tmp_path: Path) -> None:
    text = """
import atexit, threading
name = "Alice"
go = threading.Event()
def last(): print(name, __name__)
def late(): go.wait(); print("thread", name)
atexit.register(last)
threading.Thread(target=late).start()
threading.Timer(0.05, go.set).start()
print("last line")
"""
    assert "thread Alice" in both(tmp_path, write(tmp_path, "a.py", text)).stdout


@pytest.mark.parametrize("last", ["sys.exit(5)", "1 / 0", "", "os._exit(6)"])
def test_a_forked_child_ends_as_a_process_of_its_own(tmp_path: Path, last: str) -> None:
    text = f"""
import atexit, os, sys
atexit.register(lambda: print("handler", os.getpid() == parent, flush=True))
parent = os.getpid()
if (child := os.fork()) == 0:
    {last}
else:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    both(tmp_path, write(tmp_path, "a.py", text))
    goes_on = DRIVER.replace("sys.exit(", "print(") + "print('the driver goes on')"
    done = subprocess.run(
        [sys.executable, "-c", goes_on, "a.py"], cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stdout.count(b"the driver goes on") == 1


def test_spawned_workers_find_the_script_again(tmp_path: Path) -> None:
    text = """
import multiprocessing, sys
def work(n): return n * n, __name__, sys.argv
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]))
"""
    assert "__mp_main__" in both(tmp_path, write(tmp_path, "a.py", text), "--x").stdout


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script("nowhere.py"), "no such script: `nowhere.py`"),
        (Script("."), "no such script: `.`"),
        (Script("no_such_module", is_module=True), "no such module: `no_such_module`"),
        (Script("json.no_such", is_module=True), "no such module: `json.no_such`"),
        (Script("json.tool.deeper", is_module=True), "no such module: `json.tool.deeper`"),
        (Script("", is_module=True), "no such module: ``"),
        (Script("..json", is_module=True), "no such module: `..json`"),
    ],
)
def test_what_is_not_there_is_named(script: Script, message: str) -> None:
    path = list(sys.path)
    with pytest.raises(InputMissingError) as caught:
        run_script(script)
    assert str(caught.value) == message
    assert sys.path == path


def test_looking_for_a_module_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "heavy/__init__.py", "raise SystemExit('imported too early')")
    write(tmp_path, "heavy/train.py", "")
    Script("heavy.train", is_module=True).require()
    Script("heavy", is_module=True).require()


def test_the_command_is_what_follows_python() -> None:
    assert Script("a.py", ("--x",)).command == ("a.py", "--x")
    assert Script("pack", ("--x",), is_module=True).command == ("-m", "pack", "--x")


def test_everything_is_put_back(tmp_path: Path) -> None:
    text = "import sys\nsys.path.insert(0, 'x')\nsys.argv.append('y')\nsys.argv = []\n1 / 0\n"
    write(tmp_path, "a.py", text)
    before = sys.argv, list(sys.argv), list(sys.path), sys.modules["__main__"]
    hook, sys.excepthook = sys.excepthook, lambda *_: None
    try:
        assert run_script(Script(str(tmp_path / "a.py"))) == 1
    finally:
        sys.excepthook = hook
    assert (sys.argv, list(sys.argv), list(sys.path), sys.modules["__main__"]) == before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_stopping_passes_handlers_of_ordinary_exceptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
from teraio.profiler.script import StopScript
try:
    try:
        raise StopScript
    except Exception:
        print("swallowed")
finally:
    print("cleaned up")
"""
    assert run_script(Script(str(tmp_path / write(tmp_path, "a.py", text)))) == 0
    assert capsys.readouterr().out == "cleaned up\n"
    assert not issubclass(StopScript, Exception)


def test_errors_of_teraio_itself_pass_through(tmp_path: Path) -> None:
    text = "from teraio.profiler.errors import StorageError\nraise StorageError('full')\n"
    with pytest.raises(StorageError, match="full"):
        run_script(Script(str(tmp_path / write(tmp_path, "a.py", text))))


WAITS = """
import signal, sys, time
{before}
try:
    print("ready", flush=True)
    time.sleep(60)
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "before", "code"),
    [
        (signal.SIGTERM, "", 143),
        (signal.SIGINT, "", 130),
        (signal.SIGTERM, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", 7),
        (signal.SIGINT, "signal.signal(signal.SIGINT, lambda *_: sys.exit(8))", 8),
    ],
)
def test_signals_unwind_the_script(
    tmp_path: Path, number: signal.Signals, before: str, code: int
) -> None:
    write(tmp_path, "a.py", WAITS.format(before=before))
    running = subprocess.Popen(
        [*DRIVEN, "a.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "ready\n"
        os.kill(running.pid, number)
        assert running.stdout.read() == "cleaned up\n"
        assert running.stderr.read() == ""
    assert running.returncode == code


def _modules_of(error: BaseException) -> list[str]:
    found, traceback = [], error.__traceback__
    while traceback is not None:
        found.append(str(traceback.tb_frame.f_globals["__name__"]))
        traceback = traceback.tb_next
    return found


def test_an_op_that_raises_shows_no_frame_between() -> None:
    with pytest.raises(RuntimeError) as caught, OpStream(StorageTable(Block), []):
        torch.mm(torch.zeros(2, 2), torch.zeros(3, 3))
    assert any(module.startswith("teraio.") for module in _modules_of(caught.value))
    tracebacks.clean(caught.value)
    assert _modules_of(caught.value) == [__name__]


def test_an_optimizer_that_raises_shows_its_own_frames() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def closure() -> float:
        msg = "diverged"
        raise ArithmeticError(msg)

    with pytest.raises(ArithmeticError) as plain:
        optimizer.step(closure)
    with (
        OptimizerWatch(lambda _: None, lambda _: None).installed(),
        pytest.raises(ArithmeticError) as watched,
    ):
        optimizer.step(closure)
    tracebacks.clean(watched.value)
    assert _modules_of(watched.value) == _modules_of(plain.value)


def test_every_exception_of_a_chain_is_cleaned() -> None:
    def fails() -> None:
        with OpStream(StorageTable(Block), []):
            torch.mm(torch.zeros(2, 2), torch.zeros(3, 3))

    def chain() -> None:
        try:
            fails()
        except RuntimeError as error:
            try:
                fails()
            except RuntimeError as other:
                msg = "both"
                raise ExceptionGroup(msg, [error, other]) from error

    with pytest.raises(ExceptionGroup) as caught:
        chain()
    group = caught.value
    group.__context__ = group  # a loop must not hold it up
    tracebacks.clean(group)
    for error in (group, group.__cause__, *group.exceptions):
        assert error is not None
        assert set(_modules_of(error)) == {__name__}
