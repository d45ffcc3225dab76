"""Run folders: private, found again after a kill, and never a reason to touch other files."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from raw_memory import nothing_leaks

from teraio.executor.run_folder import LOCK_NAME, RunFolder, clean_folder
from teraio.profiler.errors import StorageError

NAME = "teraio-1-0123456789abcdef-rank0"

KILLED = """
import os, signal, sys
from pathlib import Path
from teraio.executor.run_folder import RunFolder
folder = RunFolder.create(Path(sys.argv[1]), rank=3)
os.write(folder.open_data(0), bytes(1 << 16))
os.kill(os.getpid(), signal.SIGKILL)
"""
FORKED = """
import os, sys
from pathlib import Path
from teraio.executor.run_folder import RunFolder
folder = RunFolder.create(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    folder.close()
    os._exit(0)
os.waitpid(child, 0)
print(folder.path.is_dir())
folder.close()
print(folder.path.exists())
"""


def _python(script: str, folder: Path) -> str:
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def _planted(parent: Path, *, name: str = NAME) -> Path:
    """What a killed run leaves, and one data file whose name it had no time to remove."""
    folder = parent / name
    folder.mkdir()
    (folder / LOCK_NAME).touch()
    (folder / "data-0").write_bytes(bytes(8192))
    return folder


def test_the_folder_is_private_and_named_after_process_and_rank(tmp_path: Path) -> None:
    with nothing_leaks():
        run = RunFolder.create(tmp_path, rank=5)
        assert re.fullmatch(rf"teraio-{os.getpid()}-[0-9a-f]{{16}}-rank5", run.path.name)
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
        assert stat.S_IMODE((run.path / LOCK_NAME).stat().st_mode) == 0o600
        run.close()
        run.close()
    assert list(tmp_path.iterdir()) == []


def test_data_files_have_no_name_and_are_private(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    fd = run.open_data(0)
    found = os.fstat(fd)
    assert (found.st_nlink, stat.S_IMODE(found.st_mode)) == (0, 0o600)
    assert [entry.name for entry in run.path.iterdir()] == [LOCK_NAME]
    os.close(fd)
    run.close()


def test_two_runs_in_one_folder_leave_each_other_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    first, second = RunFolder.create(tmp_path), RunFolder.create(tmp_path)
    first.close()
    assert second.path.is_dir()
    second.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_close_leaves_a_folder_that_holds_a_stranger_s_file(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    (run.path / "notes").touch()
    run.close()
    assert (run.path / "notes").exists()


def test_a_forked_child_does_not_remove_the_folder(tmp_path: Path) -> None:
    assert _python(FORKED, tmp_path).split() == ["True", "False"]


@pytest.mark.parametrize("kind", ["missing", "file", "dangling link"])
def test_an_unusable_parent_is_one_clear_error(tmp_path: Path, kind: str) -> None:
    parent = tmp_path / "ssd"
    if kind == "file":
        parent.touch()
    elif kind == "dangling link":
        parent.symlink_to(tmp_path / "nowhere")
    for use in (RunFolder.create, clean_folder):
        with nothing_leaks(), pytest.raises(StorageError, match=f"cannot use `{parent}`") as caught:
            use(parent)
        assert caught.value.exit_code == 74
        assert caught.value.hint


@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_folder_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)

    def refuse(*args: object, **options: object) -> object:
        if call == "open" and args[0] == tmp_path:
            return real(*args, **options)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageError, match=r"EROFS \(Read-only file system\)"):
        RunFolder.create(tmp_path)


def test_nothing_stays_where_locks_are_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with nothing_leaks(), pytest.raises(StorageError, match="ENOLCK"):
        RunFolder.create(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["open", "unlink"])
def test_a_data_file_that_cannot_be_made_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = RunFolder.create(tmp_path)
    with nothing_leaks(), monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StorageError, match=r"cannot make a data file in .*: ENOSPC"):
            run.open_data(0)
    run.close()


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    ssd = tmp_path / "ssd"
    ssd.mkdir()
    monkeypatch.setattr(secrets, "token_hex", lambda _count: "0" * 16)
    (ssd / f"teraio-{os.getpid()}-{'0' * 16}-rank0").symlink_to(outside)
    with pytest.raises(StorageError, match="EEXIST"):
        RunFolder.create(ssd)
    assert list(outside.iterdir()) == []


def test_a_folder_cleaned_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    taken: list[Path] = []

    def cleaner_was_faster(fd: int, operation: int) -> None:
        if not taken:
            (folder,) = tmp_path.iterdir()
            (folder / LOCK_NAME).unlink()
            folder.rmdir()
            taken.append(folder)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", cleaner_was_faster)
    with nothing_leaks():
        run = RunFolder.create(tmp_path)
        assert run.path not in taken
        assert (run.path / LOCK_NAME).exists()
        run.close()


def test_cleaning_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    _python(KILLED, tmp_path)
    (left,) = tmp_path.iterdir()
    with nothing_leaks():
        (removed,) = clean_folder(tmp_path)
    assert (removed.path, removed.nbytes, removed.kept) == (left, 0, "")
    assert list(tmp_path.iterdir()) == []


def test_cleaning_reports_the_bytes_it_freed(tmp_path: Path) -> None:
    folder = _planted(tmp_path)
    (removed,) = clean_folder(tmp_path)
    assert removed.nbytes == 8192
    assert not folder.exists()


def test_cleaning_keeps_a_run_that_is_alive(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    (kept,) = clean_folder(tmp_path)
    assert (kept.path, kept.nbytes, kept.kept) == (run.path, 0, "in use")
    fd = run.open_data(0)
    os.close(fd)
    run.close()


def test_cleaning_touches_nothing_that_is_not_a_run_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    ssd = tmp_path / "ssd"
    outside.mkdir()
    ssd.mkdir()
    _planted(outside)
    (ssd / NAME).symlink_to(outside / NAME)
    (ssd / NAME.replace("-1-", "-2-")).write_text("a file with the name of a run folder")
    (ssd / NAME.replace("-1-", "-3-") / "notes").mkdir(parents=True)
    linked = ssd / NAME.replace("-1-", "-4-")
    linked.mkdir()
    (linked / LOCK_NAME).symlink_to(outside / NAME / LOCK_NAME)
    piped = ssd / NAME.replace("-1-", "-5-")
    (piped / LOCK_NAME).mkdir(parents=True)
    _planted(ssd, name="teraio-mine")
    before = sorted(tmp_path.rglob("*"))
    with nothing_leaks():
        assert [kept for kept in clean_folder(ssd) if not kept.kept] == []
    assert sorted(tmp_path.rglob("*")) == before


ENDS_AFTER = """
import fcntl, os, signal, sys
from pathlib import Path
from teraio.executor.run_folder import RunFolder
left = int(sys.argv[2])

def dying(module, name):
    real = getattr(module, name)
    def call(*arguments, **options):
        global left
        done = real(*arguments, **options)
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(module, name, call)

for module, name in ((os, "mkdir"), (os, "open"), (fcntl, "flock"), (os, "unlink"), (os, "rmdir")):
    dying(module, name)
run = RunFolder.create(Path(sys.argv[1]))
os.write(run.open_data(0), bytes(1 << 16))
run.close()
"""


def test_whenever_a_run_is_killed_cleaning_leaves_nothing(tmp_path: Path) -> None:
    """After each of its calls: mkdir, open, flock, unlink and rmdir."""
    (tmp_path / "mine").touch()
    alive = RunFolder.create(tmp_path)
    ends = []
    for number in range(20):
        words = [sys.executable, "-c", ENDS_AFTER, str(tmp_path), str(number)]
        ends.append(subprocess.run(words, check=False).returncode)
        left = [path for path in tmp_path.glob("teraio-*") if path != alive.path]
        cleaned = clean_folder(tmp_path)
        assert [removed.path for removed in cleaned if not removed.kept] == left
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "mine", alive.path])
        if ends[-1] == 0:
            break
    assert ends == [-9] * (len(ends) - 1) + [0]
    assert len(ends) > 9
    alive.close()


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        run = RunFolder.create(tmp_path)
        fd = run.open_data(0)
    finally:
        os.umask(before)
    modes = [os.stat(run.path), os.stat(run.path / LOCK_NAME), os.fstat(fd)]  # noqa: PTH116
    assert [stat.S_IMODE(found.st_mode) for found in modes] == [0o700, 0o600, 0o600]
    os.close(fd)
    run.close()


@pytest.mark.parametrize("call", ["the folder", "the lock"])
def test_a_folder_cleaned_while_it_is_empty_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = os.open
    taken: list[Path] = []

    def cleaner_was_faster(path: str | Path, *arguments: int, **options: int) -> int:
        is_lock = path == LOCK_NAME
        if str(path) != str(tmp_path) and not taken and is_lock == (call == "the lock"):
            taken.extend(tmp_path.iterdir())
            taken[0].rmdir()
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", cleaner_was_faster)
    with nothing_leaks():
        run = RunFolder.create(tmp_path)
        assert run.path not in taken
        assert list(tmp_path.iterdir()) == [run.path]
        run.close()


@pytest.mark.parametrize("stranger", ["notes", "data-x", "data-1"])
def test_cleaning_keeps_a_folder_with_a_stranger_s_file(tmp_path: Path, stranger: str) -> None:
    folder = _planted(tmp_path)
    (tmp_path / "precious").write_text("kept")
    (folder / stranger).symlink_to(tmp_path / "precious")
    (kept,) = clean_folder(tmp_path)
    assert kept.kept == f"holds a file that is not teraio's: `{stranger}`"
    assert sorted(e.name for e in folder.iterdir()) == sorted(["data-0", "lock", stranger])
    assert (tmp_path / "precious").read_text() == "kept"


def test_cleaning_says_why_a_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _planted(tmp_path)

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "unlink", refuse)
    (kept,) = clean_folder(tmp_path)
    assert kept.kept == "cannot remove it: EACCES (Permission denied)"
