"""The command as a whole: help, version, exit codes, signals, closed pipes, imports."""

from __future__ import annotations

import os
import pkgutil
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from cli import COMMAND, ENVIRONMENT, failed, teraio
from traces import training_trace

from teraio import planner
from teraio.planner.policies import AUTO, POLICIES
from teraio.profiler import errors
from teraio.profiler.trace import write_trace
from teraio_cli.main import app

ROOT = Path(__file__).parent.parent
SNAPSHOTS = Path(__file__).parent / "snapshots"


def _names(command: Any, prefix: str = "") -> list[str]:
    """Return the names of a command's subcommands, and of theirs, as they are typed."""
    own = [prefix.strip()]
    inner = getattr(command, "commands", {})
    return own + [name for key in sorted(inner) for name in _names(inner[key], f"{prefix} {key}")]


NAMES = _names(typer.main.get_command(app))


@pytest.mark.parametrize("name", NAMES)
def test_help_is_frozen(name: str) -> None:
    done = teraio(*name.split(), "--help")
    assert done.returncode == 0
    snapshot = SNAPSHOTS / f"{'_'.join(['help', *name.split()])}.txt"
    if "UPDATE_SNAPSHOTS" in os.environ:
        snapshot.write_bytes(done.stdout)
    # Layout is Typer's business and differs between its versions; the words are ours.
    assert done.stdout.decode().split() == snapshot.read_text().split()


def test_every_snapshot_is_of_a_command() -> None:
    frozen = {" ".join(path.stem.split("_")[1:]) for path in SNAPSHOTS.iterdir()}
    assert frozen == set(NAMES)


@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_help_names_every_policy(command: str) -> None:
    words = teraio(command, "--help").stdout.decode().replace(",", " ").replace(".", " ").split()
    assert {AUTO, *POLICIES} <= set(words)


def test_version() -> None:
    assert re.fullmatch(r"teraio \d+\.\d+\.\d+\n", teraio("--version").stdout.decode())


def test_unknown_command_is_a_usage_error() -> None:
    assert "no-such" in failed(teraio("no-such"), 2)


def _modules_after(statements: str) -> set[str]:
    code = f"import sys\n{statements}\nprint('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("modules:")[2].split())


def test_help_imports_nothing_heavy() -> None:
    statements = """
sys.argv = ["teraio", "--help"]
from teraio_cli.main import main
try:
    main()
except SystemExit:
    pass
"""
    loaded = _modules_after(statements)
    assert "teraio_cli.plan" in loaded
    assert not loaded & {"torch", "pulp", "pyarrow", "numpy"}


def test_planner_and_trace_import_no_torch() -> None:
    names = [module.name for module in pkgutil.iter_modules(planner.__path__)]
    imports = [f"import teraio.planner.{name}" for name in names]
    loaded = _modules_after("\n".join([*imports, "import teraio.profiler.trace"]))
    assert "teraio.planner.plan" in loaded
    assert "torch" not in loaded


def test_readme_lists_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    codes = {error.exit_code for error in errors.TeraioError.__subclasses__()}
    assert codes <= {int(row) for row in rows}


def test_errors_are_explained_once_with_a_hint(tmp_path: Path) -> None:
    said = failed(teraio("inspect", tmp_path / "none"), 66)
    assert said == f"error: no such file: `{tmp_path}/none`\n"
    existing = tmp_path / "plan.json"
    existing.write_text("{}")
    trace = Path(__file__).parent.parent / "sample_traces" / "llama.parquet"
    said = failed(teraio("plan", trace, "--memory", "1GiB", "-o", existing), 73)
    assert re.fullmatch(r"error: `.*` exists\n\nhint: .*`--force`.*\n", said)


def test_interrupt_ends_with_130(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "inspect", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        # More than a pipe holds, so that writing it returns only once the command reads.
        process.stdin.write(bytes(1 << 20))  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()  # type: ignore[union-attr]
    assert process.returncode == 130
    assert "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", [("inspect", "--top", "1"), ("inspect", "--json")])
def test_full_disk_behind_stdout_is_explained(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(training_trace(60), path)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *words, path],
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            check=False,
        )
    said = done.stderr.decode()
    assert done.returncode == 74
    assert "error: cannot write to stdout: No space left on device" in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def test_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(training_trace(4), path)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "inspect", "--json", path],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
