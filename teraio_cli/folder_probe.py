"""Try a folder as SSD storage: write past the page cache, read back, compare."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from teraio_cli.gpu_probes import unknown_to_cufile

TRIAL_SIZES: Final = (4096, (1 << 20) + 513)
"""Bytes of the trial files: one page, and a size that no block size divides."""
MOUNT_TABLE: Final = Path("/proc/self/mountinfo")

ADVICE: Final = {
    "tmpfs": "this is memory, not an SSD: nothing is gained by moving tensors there",
    "ramfs": "this is memory, not an SSD: nothing is gained by moving tensors there",
    "overlay": "a container's own layer: mount an SSD folder into it for full speed and GDS",
    "nfs": "a network file system: expect the network's speed",
    "nfs4": "a network file system: expect the network's speed",
}
BUFFERED: Final = "the file system refuses O_DIRECT: transfers pass through the page cache"


@dataclass(frozen=True)
class Folder:
    """What a folder gives; sizes in bytes, `path` as it was named."""

    path: str
    ok: bool
    found: str
    file_system: str = ""
    mount_options: str = ""
    free_bytes: int = 0
    direct: bool = False
    advice: str = ""


def probe_folder(path: str) -> Folder:
    """Write, read and compare trial files in a folder; nothing stays there. Raises nothing."""
    try:
        direct = _trial(path)
        file_system, options = mount_of(Path(path).resolve(), MOUNT_TABLE.read_text())
        free = shutil.disk_usage(path).free
    except OSError as error:
        cause = error.strerror or str(error)
        return Folder(path, ok=False, found=cause, advice="name a folder that you may write to")
    advice = ADVICE.get(file_system, "" if direct else BUFFERED) or unknown_to_cufile(path)
    how = "O_DIRECT" if direct else "the page cache"
    found = f"wrote, read and compared through {how}"
    return Folder(path, True, found, file_system, options, free, direct, advice)


def mount_of(path: Path, table: str) -> tuple[str, str]:
    """Return file system type and mount options of a path, from the text of a mountinfo table."""
    best, answer = -1, ("", "")
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if path.is_relative_to(point) and len(point) >= best:
            kind, _, options = after.split(maxsplit=2)
            best, answer = len(point), (kind, options)
    return answer


def _trial(path: str) -> bool:
    """Return whether O_DIRECT works; raises OSError if not even buffered transfers do."""
    try:
        for size in TRIAL_SIZES:
            _write_read_compare(path, size, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    else:
        return True
    for size in TRIAL_SIZES:
        _write_read_compare(path, size, 0)
    return False


def _write_read_compare(folder: str, size: int, flags: int) -> None:
    padded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    data = os.urandom(size)
    fd = _open_private(folder, flags)
    try:
        with mmap.mmap(-1, padded) as out, mmap.mmap(-1, padded) as back:
            out[:size] = data
            _require_whole(os.pwritev(fd, [out], 0), padded)
            os.ftruncate(fd, size)
            os.fsync(fd)
            _require_whole(os.preadv(fd, [back], 0), size)
            if back[:size] != data:
                raise OSError(errno.EIO, "the bytes read back are not those written")
    finally:
        os.close(fd)


def _open_private(folder: str, flags: int) -> int:
    fd, name = tempfile.mkstemp(prefix=".teraio-doctor-", dir=folder)
    try:
        return os.open(name, os.O_RDWR | flags)
    finally:
        os.close(fd)
        Path(name).unlink()


def _require_whole(done: int, wanted: int) -> None:
    if done != wanted:
        raise OSError(errno.EIO, f"only {done} of {wanted} bytes were transferred")
