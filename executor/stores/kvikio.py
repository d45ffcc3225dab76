"""The SSD store for GPUs: files read and written by KvikIO, which has GPUDirect Storage.

How bytes really move is found by trying: KvikIO and the cuFile library under it each fall back
in silence to copies through host memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import torch

from teraio.executor.stores.memory import view_of
from teraio.executor.stores.posix import ALIGNMENT, TRIAL_BLOCKS, PosixStore
from teraio.profiler.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from teraio.executor.stores.base import Piece
    from teraio.executor.stores.memory import Reach

GDS: Final = "gds"
COMPATIBLE: Final = "cufile-compat"
POSIX: Final = "kvikio-posix"

KVIKIO_PIECE_BYTES: Final = 64 << 20
"""Bytes given to KvikIO at a time; it cuts them for threads of its own, outside Python."""

THREADS: Final = 8

_HINT: Final = "KvikIO moved these bytes; `--io posix` does without it"


class KvikioStore(PosixStore):
    """Offloaded bytes on one or more SSDs, moved between their files and the GPU by KvikIO.

    Raises StorageError as `PosixStore` does, and where KvikIO is missing or cannot work here.
    """

    _reaches_device = True

    def __init__(
        self,
        folders: Sequence[Path],
        capacity_bytes: int,
        rank: int = 0,
        *,
        reach: Reach,
        checksums: bool = False,
    ) -> None:
        self._kvikio = _kvikio()
        self._handles: list[Any] = []
        super().__init__(
            folders,
            capacity_bytes,
            rank,
            piece_bytes=KVIKIO_PIECE_BYTES,
            checksums=checksums,
            reach=reach,
        )
        self._resources.callback(self._close_handles)
        try:
            self._mode = self._open_handles()
        except BaseException:
            self.close()
            raise

    @property
    def io_path(self) -> str:
        """`gds`, `cufile-compat` (cuFile copies through the host) or `kvikio-posix`."""
        return self._mode

    def _write(self, piece: Piece, address: int) -> None:
        self._move("write", piece, address)

    def _read(self, piece: Piece, address: int) -> None:
        self._move("read", piece, address)

    def _move(self, verb: str, piece: Piece, address: int) -> None:
        handle = self._handles[piece.volume]
        call = handle.pwrite if verb == "write" else handle.pread
        place = self.describe(piece)
        try:
            moved = call(self._bytes_at(address, piece.nbytes), piece.nbytes, piece.offset).get()
        except Exception as error:  # KvikIO raises RuntimeError for whatever went wrong
            msg = f"cannot {verb} {place}: {error}"
            raise StorageError(msg, hint=_HINT) from error
        if moved != piece.nbytes:
            msg = f"cannot {verb} {place}: only {moved} bytes moved"
            raise StorageError(msg, hint=_HINT)

    def _bytes_at(self, address: int, nbytes: int) -> Any:
        """Return what KvikIO takes for memory: staged on the host if there are checksums."""
        return view_of(address, nbytes) if self.has_checksums else DeviceBytes(address, nbytes)

    def _open_handles(self) -> str:
        """Open each file with cuFile, or all of them without it; return how bytes move."""
        kvikio = self._kvikio
        # The page cache is no drive, and holds memory that others could use.
        kvikio.defaults.set({"num_threads": THREADS, "auto_direct_io_read": True})
        paths = [f"/proc/self/fd/{file.fd}" for file in self._files]
        try:
            self._open(paths, kvikio.CompatMode.OFF)
        except Exception:  # as above
            self._close_handles()
            self._open(paths, kvikio.CompatMode.ON)
            return POSIX
        return GDS if kvikio.cufile_driver.get("is_gds_available") else COMPATIBLE

    def _open(self, paths: Sequence[str], mode: Any) -> None:
        with self._kvikio.defaults.set("compat_mode", mode):
            for path in paths:
                self._handles.append(self._kvikio.CuFile(path, "r+"))
            self._try()

    def _try(self) -> None:
        """Write one block and an odd rest of every file, read them back and compare."""
        nbytes = TRIAL_BLOCKS * ALIGNMENT + 513
        for volume, file in enumerate(self._files):
            sent = torch.frombuffer(bytearray(os.urandom(nbytes)), dtype=torch.uint8).cuda()
            received = torch.zeros_like(sent)
            torch.cuda.synchronize()
            for verb, memory in (("write", sent), ("read", received)):
                call = getattr(self._handles[volume], f"p{verb}")
                if call(DeviceBytes(memory.data_ptr(), nbytes), nbytes, 0).get() != nbytes:
                    msg = f"`{file.path}` took fewer bytes than it was given"
                    raise StorageError(msg, hint=_HINT)
            if not torch.equal(sent, received):
                msg = f"`{file.path}` does not give back what was written to it"
                raise StorageError(msg, hint=_HINT)

    def _close_handles(self) -> None:
        while self._handles:
            self._handles.pop().close()


class DeviceBytes:
    """Memory of the current CUDA device as KvikIO takes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def _kvikio() -> Any:
    """Return the module with all that is needed of it; raises StorageError where it is missing."""
    try:
        import kvikio
        import kvikio.cufile_driver
        import kvikio.defaults
    except ImportError as error:
        msg = f"KvikIO cannot be used: {error}"
        raise StorageError(msg, hint="`pip install 'teraio[gds]'`, or use `--io posix`") from error
    return kvikio
