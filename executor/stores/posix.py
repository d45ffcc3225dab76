"""The SSD store for every machine: preallocated files, direct I/O where the file system takes it.

Each folder holds one file that has no name and all its room from the start. An extent is cut
into pieces that go round robin over the folders, so that several drives work at once.

Direct I/O asks for file offsets, lengths and memory addresses that are multiples of
`ALIGNMENT`. A buffer that starts at such an address moves without a copy, all but its last
incomplete block; any other moves through page-aligned bounce buffers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from teraio.executor.run_folder import RunFolder, io_error
from teraio.executor.stores.base import PIECE_BYTES, Extent, Piece
from teraio.executor.stores.memory import (
    BouncePool,
    Reach,
    aligned_memory,
    copy,
    view_of,
)
from teraio.executor.stores.pieced import PiecedStore
from teraio.executor.stores.space import Space, round_up
from teraio.profiler.errors import StorageError

ALIGNMENT: Final = 4096
"""Bytes. The largest logical block of drives in use; what is aligned to it suits all of them."""

TRIAL_BLOCKS: Final = 2
"""Blocks of the trial that settles how bytes move: one whole, one in part."""

_HINTS: Final = {
    errno.ENOSPC: "free some space there, or name a folder on another drive",
    errno.EDQUOT: "the user's quota there is used up; name a folder on another drive",
    errno.EIO: "the drive reported a fault; look at the kernel's log",
}

_Call = Callable[[int, list[memoryview], int], int]


class PosixStore(PiecedStore):
    """Offloaded bytes on one or more SSDs, through files that vanish with the process.

    `capacity_bytes` are reserved at once, in equal shares; an allocation beyond them reserves
    more. Close it after the engine that uses it.

    Raises StorageError when a folder cannot be used or has too little room.
    """

    tier = "ssd"

    def __init__(
        self,
        folders: Sequence[Path],
        capacity_bytes: int,
        rank: int = 0,
        *,
        piece_bytes: int = PIECE_BYTES,
        direct: bool = True,
        checksums: bool = False,
        reach: Reach | None = None,
    ) -> None:
        if not folders:
            msg = "no folder to keep offloaded tensors in"
            raise StorageError(msg, hint="name one with `--ssd`")
        share = round_up(-(-capacity_bytes // len(folders)), ALIGNMENT)
        space = Space([share] * len(folders), granule=ALIGNMENT, piece_bytes=piece_bytes)
        super().__init__(space, checksums=checksums, reach=reach)
        self._growing = threading.Lock()
        with ExitStack() as stack:
            bounce = BouncePool(max(self._space.piece_bytes, TRIAL_BLOCKS * ALIGNMENT))
            stack.callback(bounce.close)
            self._files = [_DataFile(Path(parent), rank, bounce, stack) for parent in folders]
            for file in self._files:
                file.reserve(0, share)
            for file in self._files:
                file.choose_path(direct=direct)
            self._resources = stack.pop_all()

    @property
    def io_path(self) -> str:
        """`posix-direct` if every folder takes direct I/O, else `posix-buffered`."""
        return "posix-direct" if all(file.direct for file in self._files) else "posix-buffered"

    def allocate(self, nbytes: int) -> Extent:
        """Reserve `nbytes` bytes in whole blocks of `ALIGNMENT`.

        Raises StorageError with the needed and the free bytes when the drives are full.
        """
        while (extent := self._space.allocate(nbytes)) is None:
            self._grow(round_up(nbytes, ALIGNMENT))
        return extent

    def close(self) -> None:
        """Close the files, which frees their bytes, and remove the run folders."""
        self._resources.close()

    def _write(self, piece: Piece, address: int) -> None:
        self._files[piece.volume].write(piece.offset, address, piece.nbytes)

    def _read(self, piece: Piece, address: int) -> None:
        self._files[piece.volume].read(piece.offset, address, piece.nbytes)

    def _place_name(self, piece: Piece) -> str:
        return f"`{self._files[piece.volume].path}`"

    def _grow(self, nbytes: int) -> None:
        """Reserve what is missing for `nbytes`; drives that are full leave it to the others."""
        with self._growing:
            missing = nbytes - self._space.free_bytes
            volumes = sorted(range(len(self._files)), key=lambda v: self._files[v].drive_bytes())
            while volumes and missing > 0:
                share = round_up(-(-missing // len(volumes)), ALIGNMENT)
                volume = volumes.pop(0)
                try:
                    self._files[volume].reserve(self._space.capacity_of(volume), share)
                except StorageError:
                    if not volumes:
                        raise
                    continue
                self._space.grow(volume, share)
                missing -= share


class _DataFile:
    """One file of the store, and the only place that makes system calls on it."""

    def __init__(self, parent: Path, rank: int, bounce: BouncePool, stack: ExitStack) -> None:
        folder = RunFolder.create(parent, rank)
        stack.callback(folder.close)
        self.parent = parent
        self.path = folder.path / "data-0"
        self.direct = False
        self._bounce = bounce
        self.fd = folder.open_data(0)
        stack.callback(self._close)

    def drive_bytes(self) -> int:
        """Return the bytes this user may still take on the drive."""
        try:
            room = os.fstatvfs(self.fd)
        except OSError as error:
            msg = f"cannot see how much room `{self.parent}` has"
            raise io_error(msg, error) from error
        return room.f_bavail * room.f_frsize

    def reserve(self, start: int, nbytes: int) -> None:
        """Make the drive set `nbytes` bytes aside for this file, from offset `start` on."""
        if not nbytes:
            return
        free = self.drive_bytes()
        msg = f"cannot reserve {nbytes} bytes in `{self.parent}`, which has {free} bytes free"
        if nbytes > free:
            # Filling a drive only to see it fail would harm whoever else writes there.
            raise StorageError(msg, hint=_HINTS[errno.ENOSPC])
        try:
            os.posix_fallocate(self.fd, start, nbytes)
        except OSError as error:
            raise io_error(msg, error, hint=_HINTS.get(error.errno or 0, "")) from error

    def choose_path(self, *, direct: bool) -> None:
        """Settle on direct or buffered I/O by writing, reading and comparing bytes."""
        if direct and self._try_direct():
            return
        self._set_direct(on=False)
        self._round_trip()

    def write(self, offset: int, address: int, nbytes: int) -> None:
        """Write memory to the file; never reads past `address + nbytes`."""
        body = self._straight_bytes(address, nbytes)
        self._move(os.pwritev, "write", offset, view_of(address, body))
        if rest := nbytes - body:
            with self._bounce.lend() as bounce:
                copy(bounce, address + body, rest)
                blocks = view_of(bounce, round_up(rest, ALIGNMENT))
                self._move(os.pwritev, "write", offset + body, blocks)

    def read(self, offset: int, address: int, nbytes: int) -> None:
        """Read the file into memory; never writes past `address + nbytes`."""
        body = self._straight_bytes(address, nbytes)
        self._move(os.preadv, "read", offset, view_of(address, body))
        if rest := nbytes - body:
            with self._bounce.lend() as bounce:
                blocks = view_of(bounce, round_up(rest, ALIGNMENT))
                self._move(os.preadv, "read", offset + body, blocks)
                copy(address + body, bounce, rest)

    def _straight_bytes(self, address: int, nbytes: int) -> int:
        """Return how many bytes need no bounce buffer."""
        if not self.direct:
            return nbytes
        return nbytes - nbytes % ALIGNMENT if address % ALIGNMENT == 0 else 0

    def _move(self, call: _Call, verb: str, offset: int, view: memoryview) -> None:
        step = ALIGNMENT if self.direct else 1
        done = 0
        while done < len(view):
            left = len(view) - done
            msg = f"cannot {verb} `{self.path}` at offset {offset + done}, length {left}"
            try:
                moved = call(self.fd, [view[done:]], offset + done)
            except OSError as error:
                hint = _HINTS.get(error.errno or 0, "")
                raise io_error(msg, error, hint=hint) from error
            # Direct I/O can go on from a block's start only; a view is whole blocks then.
            moved -= moved % step
            if not moved:
                msg += ": no bytes moved"
                raise StorageError(msg, hint=_HINTS[errno.EIO])
            done += moved

    def _try_direct(self) -> bool:
        try:
            self._set_direct(on=True)
            self._round_trip()
        except (OSError, StorageError):
            return False
        return True

    def _set_direct(self, *, on: bool) -> None:
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if on else flags & ~os.O_DIRECT
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags)
        self.direct = on

    def _round_trip(self) -> None:
        """Write one block and an odd rest, read them back and compare."""
        nbytes = (TRIAL_BLOCKS - 1) * ALIGNMENT + 513
        for shift in (0, 1):  # memory that is not aligned has to work as well
            with aligned_memory(nbytes + shift) as out, aligned_memory(nbytes + shift) as back:
                sent, received = view_of(out + shift, nbytes), view_of(back + shift, nbytes)
                sent[:] = os.urandom(nbytes)
                self.write(0, out + shift, nbytes)
                self.read(0, back + shift, nbytes)
                if sent != received:
                    msg = f"`{self.path}` does not give back what was written to it"
                    raise StorageError(msg, hint=_HINTS[errno.EIO])

    def _close(self) -> None:
        os.close(self.fd)
        self.fd = -1
