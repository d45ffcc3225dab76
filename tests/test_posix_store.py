"""The SSD store: the same bytes come back, or there is one clear error."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from raw_memory import Buffer, nothing_leaks

from teraio.executor.stores import posix
from teraio.executor.stores.memory import address_of
from teraio.executor.stores.posix import ALIGNMENT, PosixStore
from teraio.profiler.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from teraio.executor.stores.base import Extent

MIB = 1 << 20
SIZES = (0, 1, 511, 512, 513, 4095, 4096, 4097, MIB + 716_928, 3 * MIB + 10)
"""The odd sizes that DeepSpeed issue 1070 lost bytes of, and their neighbours."""


def _takes_direct_io(folder: Path) -> bool:
    """Whether direct I/O works there, found without the store."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.fcntl(file.fileno(), fcntl.F_SETFL, os.O_RDWR | os.O_DIRECT)
            os.pwritev(file.fileno(), [mmap.mmap(-1, ALIGNMENT)], 0)
        except OSError:
            return False
        return True


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def direct(request: pytest.FixtureRequest, tmp_path: Path) -> bool:
    if request.param and not _takes_direct_io(tmp_path):
        pytest.skip("the file system of the test folder takes no direct I/O")
    return bool(request.param)


@pytest.fixture
def store(tmp_path: Path, direct: bool) -> Iterator[PosixStore]:
    opened = PosixStore([tmp_path], 16 * ALIGNMENT, piece_bytes=2 * ALIGNMENT, direct=direct)
    yield opened
    opened.close()


def _write(store: PosixStore, extent: Extent, buffer: Buffer) -> None:
    moved = sum(store.write_piece(extent, p, buffer.address) for p in store.pieces(extent))
    assert moved == extent.nbytes


def _read(store: PosixStore, extent: Extent, *, shift: int = 0) -> bytes:
    """Read an extent into fresh memory, whose surroundings must stay as they are."""
    buffer = Buffer(extent.nbytes, shift=shift, content=bytes(extent.nbytes))
    moved = sum(store.read_piece(extent, p, buffer.address) for p in store.pieces(extent))
    assert moved == extent.nbytes
    assert buffer.guards_intact
    return buffer.content


def _fd(store: PosixStore, number: int = 0) -> int:
    return store._files[number].fd


@pytest.mark.parametrize("folders", [1, 2])
@pytest.mark.parametrize("shift", [0, 64, 1], ids=["aligned", "as-torch", "odd"])
def test_any_size_comes_back_unchanged(
    tmp_path: Path, direct: bool, shift: int, folders: int
) -> None:
    parents = [tmp_path / str(number) for number in range(folders)]
    for parent in parents:
        parent.mkdir()
    store = PosixStore(parents, 6 * MIB, piece_bytes=MIB, direct=direct)
    assert store.io_path == ("posix-direct" if direct else "posix-buffered")
    kept = []
    for nbytes in SIZES:
        buffer = Buffer(nbytes, shift=shift)
        extent = store.allocate(nbytes)
        _write(store, extent, buffer)
        kept.append((extent, buffer.content))
    for extent, content in kept:
        assert _read(store, extent, shift=shift) == content
        assert _read(store, extent, shift=(shift + 64) % 4096) == content
    store.close()


@examples(20)
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 60_000)), max_size=25),
    folders=st.integers(1, 3),
)
def test_what_is_kept_outlives_what_is_freed_around_it(
    steps: list[tuple[bool, int]], folders: int
) -> None:
    with tempfile.TemporaryDirectory() as parent:
        store = PosixStore([Path(parent)] * folders, 0, piece_bytes=2 * ALIGNMENT, checksums=True)
        kept: list[tuple[Extent, bytes]] = []
        for is_free, number in steps:
            if is_free and kept:
                store.free(kept.pop(number % len(kept))[0])
                continue
            buffer = Buffer(number, shift=number % 65)
            extent = store.allocate(number)
            _write(store, extent, buffer)
            kept.append((extent, buffer.content))
        for extent, content in kept:
            assert _read(store, extent, shift=64) == content
            store.free(extent)
        assert store.free_bytes == store.capacity_bytes
        store.close()


@pytest.mark.parametrize("nbytes", [4096, 4097, 8192, 9001])
def test_not_one_byte_past_the_memory_is_touched(store: PosixStore, nbytes: int) -> None:
    """The memory ends where a page begins that no one may read."""
    pages = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    wall = address_of(pages) + 3 * mmap.PAGESIZE
    start = 3 * mmap.PAGESIZE - nbytes
    no_access = 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(wall), mmap.PAGESIZE, no_access) == 0
    content = os.urandom(nbytes)
    pages[start : start + nbytes] = content
    extent = store.allocate(nbytes)
    for piece in store.pieces(extent):
        store.write_piece(extent, piece, wall - nbytes)
    pages[start : start + nbytes] = bytes(nbytes)
    for piece in store.pieces(extent):
        store.read_piece(extent, piece, wall - nbytes)
    assert pages[start : start + nbytes] == content


def test_aligned_memory_needs_no_bounce_buffer_but_for_its_last_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _takes_direct_io(tmp_path):
        pytest.skip("the file system of the test folder takes no direct I/O")
    store = PosixStore([tmp_path], MIB)
    copied: list[int] = []
    monkeypatch.setattr(posix, "copy", lambda _target, _source, nbytes: copied.append(nbytes))
    for shift in (0, 64):
        buffer = Buffer(3 * ALIGNMENT + 5, shift=shift)
        _write(store, store.allocate(buffer.nbytes), buffer)
    assert copied == [5, 3 * ALIGNMENT + 5]
    store.close()


def test_pieces_are_spread_over_the_folders(tmp_path: Path) -> None:
    parents = [tmp_path / "a", tmp_path / "b"]
    for parent in parents:
        parent.mkdir()
    store = PosixStore(parents, 8 * ALIGNMENT, piece_bytes=ALIGNMENT)
    extent = store.allocate(4 * ALIGNMENT)
    assert [piece.volume for piece in extent.pieces] == [0, 1, 0, 1]
    sizes = [os.fstat(_fd(store, number)).st_size for number in (0, 1)]
    assert sizes == [4 * ALIGNMENT, 4 * ALIGNMENT]
    assert [len(list(parent.iterdir())) for parent in parents] == [1, 1]
    store.close()
    assert [list(parent.iterdir()) for parent in parents] == [[], []]


# Room


def test_the_room_is_there_from_the_start(tmp_path: Path) -> None:
    store = PosixStore([tmp_path], 3 * MIB)
    found = os.fstat(_fd(store))
    assert found.st_size == store.capacity_bytes == 3 * MIB
    assert found.st_blocks * 512 >= 3 * MIB
    assert found.st_nlink == 0
    store.close()


def test_a_drive_too_small_for_the_plan_is_refused_at_once(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    needed = room.f_bavail * room.f_frsize + (1 << 40)
    with nothing_leaks(), pytest.raises(StorageError) as caught:
        PosixStore([tmp_path], needed)
    said = re.fullmatch(
        rf"cannot reserve (\d+) bytes in `{tmp_path}`, which has (\d+) bytes free",
        str(caught.value),
    )
    assert said is not None
    assert needed <= int(said[1]) < needed + ALIGNMENT
    assert 0 < int(said[2]) < needed
    assert "another drive" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_second_folder_failing_leaves_nothing_in_the_first(tmp_path: Path) -> None:
    with nothing_leaks(), pytest.raises(StorageError, match=f"cannot use `{tmp_path}/none`"):
        PosixStore([tmp_path, tmp_path / "none"], MIB)
    assert list(tmp_path.iterdir()) == []


def test_no_folder_at_all_is_an_error() -> None:
    with pytest.raises(StorageError, match="no folder") as caught:
        PosixStore([], MIB)
    assert "--ssd" in caught.value.hint


def test_allocation_beyond_the_capacity_reserves_more(store: PosixStore) -> None:
    first = store.allocate(10 * ALIGNMENT)
    second = store.allocate(20 * ALIGNMENT)
    assert store.capacity_bytes == 30 * ALIGNMENT
    assert store.free_bytes == 0
    for extent in (first, second):
        buffer = Buffer(extent.nbytes)
        _write(store, extent, buffer)
        assert _read(store, extent) == buffer.content


def _full(monkeypatch: pytest.MonkeyPatch, *fds: int) -> None:
    real = os.posix_fallocate

    def reserve(fd: int, offset: int, nbytes: int) -> None:
        if fd in fds:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", reserve)


def test_a_drive_that_fills_up_in_mid_run_is_one_clear_error(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = store.allocate(16 * ALIGNMENT)
    buffer = Buffer(extent.nbytes)
    _write(store, extent, buffer)
    _full(monkeypatch, _fd(store))
    said = rf"cannot reserve 4096 bytes in `{tmp_path}`, which has \d+ bytes free: ENOSPC"
    with pytest.raises(StorageError, match=said):
        store.allocate(1)
    assert _read(store, extent) == buffer.content
    store.free(extent)
    assert store.allocate(1).nbytes == 1


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_drive_leaves_its_share_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: int
) -> None:
    store = PosixStore([tmp_path, tmp_path], 0)
    rooms = {number: 10 * MIB if number == full else 20 * MIB for number in (0, 1)}
    for number, file in enumerate(store._files):
        monkeypatch.setattr(file, "drive_bytes", lambda number=number: rooms[number])
    _full(monkeypatch, _fd(store, full))
    extent = store.allocate(6 * MIB)
    assert {piece.volume for piece in extent.pieces} == {1 - full}
    buffer = Buffer(extent.nbytes)
    _write(store, extent, buffer)
    assert _read(store, extent) == buffer.content
    store.close()


# Faults


def _raising(number: int) -> Callable[..., int]:
    def call(*_args: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(("call", "verb"), [("pwritev", "write"), ("preadv", "read")])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINVAL])
def test_a_failed_call_names_file_offset_length_and_errno(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, call: str, verb: str, number: int
) -> None:
    store.allocate(ALIGNMENT)
    extent = store.allocate(2 * ALIGNMENT)
    buffer = Buffer(extent.nbytes)
    monkeypatch.setattr(os, call, _raising(number))
    move = store.write_piece if verb == "write" else store.read_piece
    with pytest.raises(StorageError) as caught:
        move(extent, extent.pieces[0], buffer.address)
    path = store._files[0].path
    assert str(caught.value) == (
        f"cannot {verb} `{path}` at offset 4096, length 8192: "
        f"{errno.errorcode[number]} ({os.strerror(number)})"
    )


def test_a_device_without_room_is_one_clear_error(store: PosixStore) -> None:
    extent = store.allocate(ALIGNMENT)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, _fd(store))
    os.close(full)
    with pytest.raises(StorageError, match="ENOSPC") as caught:
        _write(store, extent, Buffer(ALIGNMENT))
    assert "free some space" in caught.value.hint


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
@pytest.mark.parametrize("shift", [0, 64])
def test_short_transfers_go_on_where_they_stopped(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, call: str, shift: int
) -> None:
    real = getattr(os, call)
    lengths: list[int] = []

    def short(fd: int, views: list[memoryview], offset: int) -> int:
        (view,) = views
        lengths.append(len(view))
        # A little more than one block: direct I/O must take the odd rest again.
        return min(real(fd, [view[:ALIGNMENT]], offset) + 100, len(view))

    monkeypatch.setattr(os, call, short)
    if store.io_path == "posix-buffered":
        monkeypatch.setattr(os, call, lambda fd, views, offset: real(fd, [views[0][:1000]], offset))
    buffer = Buffer(3 * ALIGNMENT + 7, shift=shift)
    extent = store.allocate(buffer.nbytes)
    _write(store, extent, buffer)
    assert _read(store, extent, shift=shift) == buffer.content
    assert all(n % ALIGNMENT == 0 for n in lengths)


@pytest.mark.parametrize(("call", "verb"), [("pwritev", "write"), ("preadv", "read")])
def test_a_call_that_moves_nothing_is_an_error_and_not_a_loop(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, call: str, verb: str
) -> None:
    extent = store.allocate(100)
    monkeypatch.setattr(os, call, lambda *_args: 0)
    move = store.write_piece if verb == "write" else store.read_piece
    buffer = Buffer(100)
    with pytest.raises(StorageError, match=rf"cannot {verb} .* at offset 0, .*: no bytes moved"):
        move(extent, extent.pieces[0], buffer.address)


def test_an_extent_is_used_only_while_it_is_allocated(store: PosixStore) -> None:
    extent = store.allocate(100)
    buffer = Buffer(100)
    store.free(extent)
    for use in (
        lambda: store.free(extent),
        lambda: store.write_piece(extent, extent.pieces[0], buffer.address),
        lambda: store.read_piece(extent, extent.pieces[0], buffer.address),
    ):
        with pytest.raises(StorageError, match="of 100 bytes is not allocated in this store"):
            use()


def test_a_closed_store_does_no_harm(store: PosixStore) -> None:
    extent = store.allocate(100)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="EBADF"):
        _write(store, extent, Buffer(100))


# How bytes really move


def test_direct_io_is_used_where_it_works(tmp_path: Path) -> None:
    store = PosixStore([tmp_path], MIB)
    wanted = "posix-direct" if _takes_direct_io(tmp_path) else "posix-buffered"
    flags = fcntl.fcntl(_fd(store), fcntl.F_GETFL)
    assert store.io_path == wanted
    assert bool(flags & os.O_DIRECT) == (wanted == "posix-direct")
    store.close()


@pytest.mark.parametrize("fault", ["flag refused", "write refused", "other bytes"])
def test_direct_io_that_does_not_work_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    fcntl_, pwritev, preadv = fcntl.fcntl, os.pwritev, os.preadv

    def is_direct(fd: int) -> bool:
        return bool(fcntl_(fd, fcntl.F_GETFL) & os.O_DIRECT)

    def set_flag(fd: int, command: int, argument: int = 0) -> int:
        if fault == "flag refused" and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return int(fcntl_(fd, command, argument))

    def write(fd: int, views: list[memoryview], offset: int) -> int:
        if fault == "write refused" and is_direct(fd):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return pwritev(fd, views, offset)

    def read(fd: int, views: list[memoryview], offset: int) -> int:
        moved = preadv(fd, views, offset)
        if fault == "other bytes" and is_direct(fd):
            views[0][0] ^= 1
        return moved

    monkeypatch.setattr(fcntl, "fcntl", set_flag)
    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(os, "preadv", read)
    store = PosixStore([tmp_path], MIB)
    assert store.io_path == "posix-buffered"
    assert not is_direct(_fd(store))
    buffer = Buffer(5001, shift=64)
    extent = store.allocate(buffer.nbytes)
    _write(store, extent, buffer)
    assert _read(store, extent) == buffer.content
    store.close()


def test_a_folder_that_gives_back_other_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", lambda _fd, views, _offset: len(views[0]))
    with nothing_leaks(), pytest.raises(StorageError, match="does not give back what was written"):
        PosixStore([tmp_path], MIB)
    assert list(tmp_path.iterdir()) == []


def test_one_buffered_folder_makes_the_path_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PosixStore([tmp_path, tmp_path], MIB)
    monkeypatch.setattr(store._files[1], "direct", False)
    assert store.io_path == "posix-buffered"
    store.close()


def test_the_store_leaves_nothing_behind(tmp_path: Path) -> None:
    with nothing_leaks():
        store = PosixStore([tmp_path, tmp_path], MIB, rank=2)
        assert [entry.name[-5:] for entry in tmp_path.iterdir()] == ["rank2", "rank2"]
        store.close()
    assert list(tmp_path.iterdir()) == []


# Checksums


def test_changed_bytes_are_found_by_their_checksum(tmp_path: Path, direct: bool) -> None:
    store = PosixStore([tmp_path], MIB, checksums=True, direct=direct)
    buffer = Buffer(ALIGNMENT + 100)
    extent = store.allocate(buffer.nbytes)
    _write(store, extent, buffer)
    assert _read(store, extent) == buffer.content
    fcntl.fcntl(_fd(store), fcntl.F_SETFL, 0)
    (piece,) = extent.pieces
    os.pwrite(_fd(store), bytes([buffer.content[9] ^ 1]), piece.offset + 9)
    store._files[0].direct = False
    with pytest.raises(StorageError, match=r"length 4196: read back with CRC-32 .*, was written"):
        _read(store, extent)
    store.close()


def test_bytes_that_were_never_written_are_no_data(tmp_path: Path) -> None:
    store = PosixStore([tmp_path], MIB, checksums=True)
    first = store.allocate(ALIGNMENT)
    _write(store, first, Buffer(ALIGNMENT))
    store.free(first)
    second = store.allocate(ALIGNMENT)
    assert second.pieces == first.pieces
    with pytest.raises(StorageError, match="was never written"):
        _read(store, second)
    store.close()
