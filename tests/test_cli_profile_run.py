"""`teraio profile` and `teraio run` where users do unusual things; test_cli_run.py has the rest."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli import COMMAND, ENVIRONMENT, MODULE, failed, here, names_in, teraio
from warm import Warm, warm_teraio

pytest.importorskip("torch")

TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(192, 192) for _ in range(4)])
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    loss = model(torch.randn(8, 192)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), flush=True)
{last}
"""


def write(folder: Path, name: str = "train.py", last: str = "") -> Path:
    path = folder / name
    path.write_text(TRAIN.format(last=last))
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write(home)
    assert warm_teraio("profile", "-o", "t", "train.py", cwd=home).returncode == 0
    words = ["--memory", "60%", "--or-minimum", "--min-tensor", "64KiB", "--policy", "greedy"]
    assert here("plan", "t", "-o", "plan.json", *words, cwd=home).returncode == 0
    return home / "plan.json"


def after(code: str) -> list[str]:
    """Return the words for `python` that run the command after `code`."""
    end = "import sys\nfrom teraio_cli.main import main\nsys.argv[0] = 'teraio'\nmain()"
    return ["-c", f"{code}\n{end}"]


def patched(code: str, *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process in which `code` has run before, and nothing else."""
    return subprocess.run(
        [sys.executable, *after(code), *map(str, words)],
        cwd=cwd, env=ENVIRONMENT, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_options_of_the_script_are_the_scripts(plan: Path, tmp_path: Path) -> None:
    last = "print(sys.argv[1:])\nprint(sys.stdin.read(), file=sys.stderr)\nsys.exit('no more data')"
    script = write(tmp_path, last=last)
    options = ["--force", "-o", "x", "--steps", "9", "-m", "--plan", "y", "--", "-"]
    plain = Warm(script, *options, stdin=b"ab").done()
    for words in (
        ["run", plan, "--ssd", ".", script, *options],
        ["profile", "--all", "-o", "t", script, *options],
    ):
        done = warm_teraio(*words, cwd=tmp_path, stdin=b"ab")
        assert done.stdout == plain.stdout
        assert done.stderr.startswith(plain.stderr)
        assert b"\nno more data\n" in done.stderr
        assert done.returncode == plain.returncode == 1
    assert names_in(tmp_path) == ["t", "train.py"]


def test_a_misspelt_option_is_not_taken_for_the_script(plan: Path, tmp_path: Path) -> None:
    script = write(tmp_path)
    said = failed(warm_teraio("run", plan, "--strickt", script, cwd=tmp_path), 66)
    assert "--strickt" in said
    said = failed(warm_teraio("profile", "--step", "3", script, cwd=tmp_path), 66)
    assert "--step" in said
    assert names_in(tmp_path) == ["train.py"]


def test_a_folder_too_small_for_the_plan(plan: Path, tmp_path: Path) -> None:
    script = write(tmp_path)
    code = "from teraio.executor.stores import posix\nposix._DataFile.drive_bytes = lambda _: 12345"
    said = failed(Warm(*after(code), "run", plan, "--ssd", ".", script, cwd=tmp_path).done(), 74)
    assert "12345 bytes free" in said
    assert "cannot reserve " in said
    assert "hint:" in said
    assert names_in(tmp_path) == ["train.py"]


def test_a_changed_byte_is_found(plan: Path, tmp_path: Path) -> None:
    script = write(tmp_path)
    code = """
from teraio.executor.stores import posix
write = posix.PosixStore.write_piece
def changing(self, extent, piece, address):
    moved = write(self, extent, piece, address)
    self._files[piece.volume].write(piece.offset, address + 64, piece.nbytes - 64)
    return moved
posix.PosixStore.write_piece = changing
"""
    words = ["run", plan, "--ssd", ".", "--verify", "3", "--report", "r.json", script]
    done = Warm(*after(code), *words, cwd=tmp_path).done()
    said = done.stderr.decode()
    assert done.returncode in (74, 77), said
    assert "read back with CRC-32" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "r.json").read_text())["steps"] < 5
    assert names_in(tmp_path) == ["r.json", "train.py"]


LONG = """
import time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(192, 192) for _ in range(4)])
optimizer = torch.optim.Adam(model.parameters())
{before}
began = time.monotonic()
while time.monotonic() - began < 60:
    model(torch.randn(64, 192)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if optimizer.state[model[0].weight]["step"] == 9:
        open("nine steps", "w").close()
"""


@pytest.mark.parametrize(
    ("number", "before", "memory", "code"),
    [
        (signal.SIGINT, "", [], 130),
        (signal.SIGTERM, "", ["--memory", "1MiB"], 143),
        (signal.SIGINT, "import signal, sys; signal.signal(2, lambda *_: sys.exit(8))", [], 8),
    ],
)
def test_signals_come_through_once_the_steps_are_recorded(
    tmp_path: Path, number: signal.Signals, before: str, memory: list[str], code: int
) -> None:
    """In an op a signal waits, and nobody listens to the ops that follow."""
    (tmp_path / "long.py").write_text(LONG.format(before=before))
    process = Warm(*MODULE, "profile", "--all", *memory, "-o", "t", "long.py", cwd=tmp_path)
    while not (tmp_path / "nine steps").exists():
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=40)
    assert process.returncode == code, said.decode()
    assert (tmp_path / "t").exists()


def test_steps_that_differ_are_named(tmp_path: Path) -> None:
    script = write(tmp_path)
    more = "    model[0].bias.exp() if step % 2 else 0\n    optimizer.step()"
    script.write_text(script.read_text().replace("    optimizer.step()", more))
    done = warm_teraio("profile", "-o", "t", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    said = done.stderr.decode()
    counts = re.search(r"the recorded steps differ: they have (\d+), (\d+) ops", said)
    assert counts is not None, said
    assert abs(int(counts[1]) - int(counts[2])) == 2  # `exp` and a `detach` of its result


def test_an_interrupt_while_torch_is_imported(plan: Path, tmp_path: Path) -> None:
    script = write(tmp_path)
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    for words in (["run", plan, "--ssd", "."], ["profile", "-o", "t"]):
        done = patched(code, *words, script, cwd=tmp_path)
        assert done.returncode == 130, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        assert set(names_in(tmp_path)) <= {"__pycache__", "torch.py", "train.py"}


def test_torch_that_is_not_there(plan: Path, tmp_path: Path) -> None:
    script = write(tmp_path)
    code = "import sys; sys.modules['torch'] = None"
    said = failed(patched(code, "run", plan, "--ssd", ".", script, cwd=tmp_path), 2)
    assert "torch cannot be imported" in said
    assert "pip install" in said


LAST = """
import atexit, os, signal, threading
print(model.state_dict(), optimizer.state_dict())
signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
weight = model[0].weight
atexit.register(lambda: print("exit", weight[0, 0].item(), flush=True))
if os.fork() == 0:
    print("child", weight[0, 0].item())
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
threading.Timer(0.2, lambda: print("late", (weight * 2).shape[0], flush=True)).start()
print("last line", flush=True)
"""


def test_the_end_of_a_script_is_as_ever(plan: Path, tmp_path: Path) -> None:
    script = write(tmp_path, last=LAST)
    plain = subprocess.run(
        [sys.executable, script], env=ENVIRONMENT, capture_output=True, timeout=60, check=True
    )
    report = tmp_path / "r.json"
    done = teraio("run", plan, "--ssd", ".", "--report", report, script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == plain.stdout
    assert b"\n5\nlast line\nlate 192\nexit " in done.stdout
    assert done.stderr.count(b"predicted") == 1
    assert json.loads(report.read_text())["steps"] == 5
    assert names_in(tmp_path) == ["r.json", "train.py"]


def test_the_command_is_also_a_module() -> None:
    assert COMMAND[1:] == ["-m", "teraio_cli"]
    assert b"profile" in teraio("--help").stdout
