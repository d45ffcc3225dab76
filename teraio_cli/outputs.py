"""Files and tables as every subcommand reads and writes them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from teraio.profiler.errors import (
    BadInputError,
    InputMissingError,
    OutputExistsError,
    StorageError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

BinaryFile = io.BufferedReader | io.BufferedRandom

STDIO: Final = "-"
PIPE_WIDTH: Final = 10_000
"""Columns of a table that goes to no terminal: enough that every row is one line."""


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text in which control characters are spelled out: files bring names of any kind."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def say(text: str) -> None:
    """Print a line for people, on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    print(json.dumps(value, indent=2))


def input_label(source: str) -> str:
    """Return how messages call an input."""
    return "stdin" if source == STDIO else source


@contextmanager
def open_input(source: str) -> Iterator[BinaryFile]:
    """Open a file, or stdin for `-`, as a binary file that can seek.

    Raises InputMissingError or BadInputError if it cannot be read or is empty.
    """
    with _opened(source) as stream, _seekable(stream) as file:
        if not file.peek(1):
            msg = f"`{input_label(source)}` is empty"
            raise BadInputError(msg, hint="did the command that was to write it fail?")
        yield file


def _opened(source: str) -> io.BufferedReader:
    try:
        if source == STDIO:
            return os.fdopen(0, "rb", closefd=False)
        return Path(source).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        msg = f"no such file: `{source}`"
        raise InputMissingError(msg) from None
    except IsADirectoryError:
        msg = f"`{source}` is a folder, not a file"
        raise BadInputError(msg, hint="name a file in it") from None
    except OSError as error:
        msg = f"cannot read `{input_label(source)}`: {error.strerror}"
        raise InputMissingError(msg) from error


@contextmanager
def _seekable(stream: io.BufferedReader) -> Iterator[BinaryFile]:
    if stream.seekable():
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield copy


@contextmanager
def text_of(stream: IO[bytes]) -> Iterator[IO[str]]:
    """Read or write an open binary file as UTF-8 text with plain line ends, in the block."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
    try:
        yield text
        text.flush()
    finally:
        text.detach()


def require_output(target: str, *, force: bool, inputs: Iterable[str | None] = ()) -> None:
    """Check that an output may be written, before the work that fills it.

    Raises UsageError if it is one of the command's `inputs`, of which None and `-` are no file,
    OutputExistsError if a file is there and `force` is not given, InputMissingError if
    its folder is not there, and StorageError if it is a folder.
    """
    path = Path(target)
    if target == STDIO or _is_device(path):
        return
    if path.is_dir():
        msg = f"cannot write `{target}`: it is a folder"
        raise StorageError(msg, hint="name a file in it")
    for source in inputs:
        if source not in (None, STDIO) and _same_file(path, Path(source)):
            msg = f"`{target}` is an input of this command, not a place for its output"
            raise UsageError(msg, hint="name another file for the output")
    if path.exists() and not force:
        msg = f"`{target}` exists"
        raise OutputExistsError(msg, hint="replace it with `--force`, or name another file")
    if not path.parent.is_dir():
        msg = f"no such folder: `{path.parent}`"
        raise InputMissingError(msg, hint=f"make it with `mkdir -p {path.parent}`")


@contextmanager
def open_output(target: str, *, force: bool) -> Iterator[IO[bytes]]:
    """Open an output that appears whole at the end of the block, or not at all.

    `-` is stdout. Raises what `require_output` raises, and StorageError if writing fails.
    """
    require_output(target, force=force)
    try:
        if target == STDIO:
            with _whole(sys.stdout.buffer) as stream:
                yield stream
        elif _is_device(Path(target)):
            with Path(target).open("wb") as device, _whole(device) as stream:
                yield stream
        else:
            with _renamed(Path(target).resolve()) as stream:
                yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        msg = f"cannot write `{target}`: {error.strerror or error}"
        raise StorageError(msg) from error


def _same_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _whole(sink: IO[bytes]) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as stream:
        yield stream
        stream.seek(0)
        shutil.copyfileobj(stream, sink)
        sink.flush()


@contextmanager
def _renamed(path: Path) -> Iterator[IO[bytes]]:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as stream:
            yield stream
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table on stdout; a column whose name ends with `>` is set flush right.

    On a terminal too narrow for it, texts are wrapped between words and numbers are left whole.
    """
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        side: Literal["left", "right"] = "right" if column.endswith(">") else "left"
        name, number = column.removesuffix(">"), side == "right"
        table.add_column(name, justify=side, overflow="fold", no_wrap=number)
    for row in rows:
        table.add_row(*map(printable, row))
    _print_rich(table)


def _print_rich(table: Table) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False)
    console.width = max(console.width, console.measure(table).minimum)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())
