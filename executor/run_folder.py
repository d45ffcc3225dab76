"""One private directory per run and rank, and what a killed run may leave of it.

A run makes `teraio-<pid>-<random>-rank<r>` in a folder of the user's and holds `flock` on the
file `lock` in it for as long as it lives, so whether a run is alive is never a guess about
process ids. Data files lose their name as soon as they are open: the system takes their bytes
back however the run ends. Everything is opened relative to an open directory and never through
a symbolic link.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from teraio.profiler.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME: Final = "lock"
_FOLDER_NAME: Final = re.compile(r"teraio-\d+-[0-9a-f]{16}-rank\d+")
_DATA_NAME: Final = re.compile(r"data-\d+")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ANEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def io_error(what: str, error: OSError, *, hint: str = "") -> StorageError:
    """Return an error that says what failed and why, with the errno by name."""
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return StorageError(f"{what}: {name} ({error.strerror or error})", hint=hint)


class RunFolder:
    """The directory of one run and rank; `create` makes it, `close` removes it."""

    def __init__(self, path: Path, parent_fd: int, folder_fd: int, lock_fd: int) -> None:
        self.path = path
        self._fds = [lock_fd, folder_fd, parent_fd]
        self._parent_fd, self._folder_fd = parent_fd, folder_fd
        self._pid = os.getpid()

    @classmethod
    def create(cls, parent: Path, rank: int = 0) -> RunFolder:
        """Make and lock a new directory in `parent`.

        Raises StorageError if `parent` is missing, is not a directory or cannot be written.
        """
        try:
            parent_fd = os.open(parent, _DIRECTORY)
        except OSError as error:
            raise _unusable(parent, error) from error
        try:
            while True:
                name = f"teraio-{os.getpid()}-{secrets.token_hex(8)}-rank{rank}"
                if fds := _make_locked(name, parent_fd):
                    return cls(parent / name, parent_fd, *fds)
        except OSError as error:
            os.close(parent_fd)
            raise _unusable(parent, error) from error

    def open_data(self, number: int) -> int:
        """Make an empty data file without a name and return its descriptor, which the caller
        closes. Raises StorageError.
        """
        name = f"data-{number}"
        msg = f"cannot make a data file in `{self.path}`"
        try:
            fd = os.open(name, _ANEW, 0o600, dir_fd=self._folder_fd)
        except OSError as error:
            raise io_error(msg, error) from error
        try:
            os.unlink(name, dir_fd=self._folder_fd)
        except OSError as error:
            os.close(fd)
            raise io_error(msg, error) from error
        return fd

    def close(self) -> None:
        """Remove the directory and let go of its lock; may be called twice.

        A forked child only closes its descriptors: the directory is its parent's.
        """
        if not self._fds:
            return
        if os.getpid() == self._pid:
            _remove_folder(self.path.name, self._parent_fd)
        _close_all(self._fds)


@dataclass(frozen=True)
class Removed:
    """A run folder that `clean_folder` found.

    `nbytes` were freed. `kept` says why the folder is still there, "" if it is gone.
    """

    path: Path
    nbytes: int
    kept: str = ""


def clean_folder(parent: Path) -> list[Removed]:
    """Remove the run folders in `parent` that no run holds any more, by name.

    Touches nothing but directories with a run folder's name that are empty or hold a lock file,
    and of those only the ones that hold nothing else than data files. Raises StorageError if
    `parent` cannot be read.
    """
    try:
        parent_fd = os.open(parent, _DIRECTORY)
    except OSError as error:
        raise _unusable(parent, error) from error
    try:
        names = sorted(filter(_FOLDER_NAME.fullmatch, os.listdir(parent_fd)))  # noqa: PTH208
        found = (_clean_one(parent / name, parent_fd) for name in names)
        return [removed for removed in found if removed is not None]
    except OSError as error:
        msg = f"cannot read `{parent}`"
        raise io_error(msg, error) from error
    finally:
        os.close(parent_fd)


def _make_locked(name: str, parent_fd: int) -> tuple[int, int] | None:
    """Make a run folder and return the descriptors of it and of its lock.

    None if a cleaner took the new folder for a dead run's before it was locked.
    """
    os.mkdir(name, 0o700, dir_fd=parent_fd)
    fds: list[int] = []
    try:
        fds.append(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd))
        fds.append(os.open(LOCK_NAME, _ANEW, 0o600, dir_fd=fds[0]))
        fcntl.flock(fds[1], fcntl.LOCK_EX)
        if os.fstat(fds[1]).st_nlink:
            return fds[0], fds[1]
    except FileNotFoundError:  # it went before the lock was made
        pass
    except OSError:
        _remove_folder(name, parent_fd)
        _close_all(fds)
        raise
    _close_all(fds)
    return None


def _remove_folder(name: str, parent_fd: int) -> None:
    """Remove a folder of this run as far as nothing but its lock is in it."""
    with suppress(OSError), _opened(name, _DIRECTORY | os.O_NOFOLLOW, parent_fd) as folder_fd:
        with suppress(FileNotFoundError):
            os.unlink(LOCK_NAME, dir_fd=folder_fd)
        os.rmdir(name, dir_fd=parent_fd)


def _clean_one(path: Path, parent_fd: int) -> Removed | None:
    """Remove one folder; None if it is not a run folder after all."""
    try:
        with _opened(path.name, _DIRECTORY | os.O_NOFOLLOW, parent_fd) as folder_fd:
            return _clean_opened(path, parent_fd, folder_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        return Removed(path, 0, str(io_error("cannot remove it", error)))


def _clean_opened(path: Path, parent_fd: int, folder_fd: int) -> Removed | None:
    if not os.listdir(folder_fd):  # a run was killed before it made its lock
        os.rmdir(path.name, dir_fd=parent_fd)
        return Removed(path, 0)
    with _opened(LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, folder_fd) as lock_fd:
        if not stat.S_ISREG(os.fstat(lock_fd).st_mode):
            return None
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Removed(path, 0, "in use")
        names = os.listdir(folder_fd)
        foreign = [name for name in names if not _is_ours(name, folder_fd)]
        if foreign:
            return Removed(path, 0, f"holds a file that is not teraio's: `{foreign[0]}`")
        freed = sum(_remove_file(name, folder_fd) for name in names)
        os.rmdir(path.name, dir_fd=parent_fd)
        return Removed(path, freed)


def _is_ours(name: str, folder_fd: int) -> bool:
    known = name == LOCK_NAME or _DATA_NAME.fullmatch(name) is not None
    mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
    return known and stat.S_ISREG(mode)


def _remove_file(name: str, folder_fd: int) -> int:
    blocks = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_blocks
    os.unlink(name, dir_fd=folder_fd)
    return blocks * 512  # st_blocks counts 512-byte units whatever the file system


@contextmanager
def _opened(name: str, flags: int, dir_fd: int) -> Iterator[int]:
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop(0))


def _unusable(parent: Path, error: OSError) -> StorageError:
    if isinstance(error, FileNotFoundError):
        hint = "make the folder first, on the drive that tensors are to go to"
    elif isinstance(error, NotADirectoryError):
        hint = "`--ssd` takes a folder"
    else:
        hint = "name a folder that this user may write in"
    return io_error(f"cannot use `{parent}` for offloaded tensors", error, hint=hint)
