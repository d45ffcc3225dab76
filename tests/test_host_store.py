"""The host-memory store: same bytes back, and never more memory than it was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from raw_memory import Buffer, nothing_leaks

from teraio.executor.stores import host
from teraio.executor.stores.host import HostStore
from teraio.profiler.errors import StorageError

MIB = 1 << 20
SIZES = (0, 1, 511, 512, 513, 4095, 4096, 4097, MIB + 716_928, 3 * MIB + 10)


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SLAB_BYTES", 2 * MIB)


def _copy_in(store: HostStore, buffer: Buffer) -> host.Extent:
    extent = store.allocate(buffer.nbytes)
    moved = [store.write_piece(extent, p, buffer.address) for p in store.pieces(extent)]
    assert sum(moved) == buffer.nbytes
    return extent


def _copy_out(store: HostStore, extent: host.Extent) -> bytes:
    buffer = Buffer(extent.nbytes, shift=64, content=bytes(extent.nbytes))
    moved = [store.read_piece(extent, p, buffer.address) for p in store.pieces(extent)]
    assert sum(moved) == extent.nbytes
    assert buffer.guards_intact
    return buffer.content


@pytest.mark.parametrize("checksums", [False, True])
def test_any_size_comes_back_unchanged(*, checksums: bool) -> None:
    store = HostStore(8 * MIB, piece_bytes=MIB, checksums=checksums)
    buffers = [Buffer(nbytes, shift=nbytes % 3) for nbytes in SIZES]
    extents = [_copy_in(store, buffer) for buffer in buffers]
    for buffer, extent in zip(buffers, extents, strict=True):
        assert _copy_out(store, extent) == buffer.content
    store.close()


def test_it_says_what_it_is() -> None:
    store = HostStore(512)
    assert (store.tier, store.io_path) == ("host", "host-memory")
    store.close()


def test_it_grows_by_slabs_up_to_its_limit() -> None:
    store = HostStore(MIB, limit_bytes=4 * MIB + 100)
    first = store.allocate(MIB)
    assert store.capacity_bytes == MIB
    buffer = Buffer(3 * MIB // 2)
    second = _copy_in(store, buffer)
    assert store.capacity_bytes == 3 * MIB
    assert _copy_out(store, second) == buffer.content
    with pytest.raises(StorageError, match="2097152 bytes needed, 1572864 of 4194304 bytes free"):
        store.allocate(2 * MIB)
    assert store.capacity_bytes == 4 * MIB
    store.free(first)
    store.free(store.allocate(2 * MIB))
    store.close()


def test_it_does_not_grow_where_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HostStore(MIB, limit_bytes=4 * MIB)
    monkeypatch.setattr(host, "_available_bytes", lambda: MIB)
    with pytest.raises(StorageError, match="1048576 of 1048576 bytes free"):
        store.allocate(2 * MIB)
    store.free(store.allocate(MIB))
    store.close()


def test_the_cap_is_hard_and_counts_granules_of_512_bytes() -> None:
    store = HostStore(3 * MIB + 100)
    assert store.capacity_bytes == 3 * MIB + 512
    big = store.allocate(3 * MIB)
    small = store.allocate(1)
    assert store.free_bytes == 0
    with pytest.raises(StorageError) as caught:
        store.allocate(513)
    assert "1024 bytes needed, 0 of 3146240 bytes free" in str(caught.value)
    assert "--host-memory" in caught.value.hint
    store.free(big)
    assert store.allocate(513).nbytes == 513
    store.free(small)
    store.close()


def test_an_empty_store_takes_nothing_but_empty_extents() -> None:
    store = HostStore(0)
    assert store.allocate(0).pieces == ()
    with pytest.raises(StorageError, match="0 of 0 bytes free"):
        store.allocate(1)
    store.close()


def test_more_than_the_machine_has_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_available_bytes", lambda: MIB)
    with pytest.raises(StorageError, match="2097152 bytes needed, 1048576 bytes available"):
        HostStore(2 * MIB)


def test_available_memory_is_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _path: "MemTotal: 9 kB\nMemAvailable:  7 kB\n")
    assert host._available_bytes() == 7 * 1024
    monkeypatch.setattr(Path, "read_text", lambda _path: "MemTotal: 9 kB\n")
    assert host._available_bytes() is None


def test_memory_the_system_refuses_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_available_bytes", lambda: None)
    monkeypatch.setattr(host, "SLAB_BYTES", 1 << 60)
    with nothing_leaks(), pytest.raises(StorageError, match="of host memory: Cannot allocate"):
        HostStore(1 << 60)


def test_extents_are_freed_once() -> None:
    store = HostStore(MIB)
    extent = store.allocate(100)
    store.free(extent)
    with pytest.raises(StorageError, match="is not allocated in this store"):
        store.free(extent)
    store.close()


def test_a_closed_store_touches_no_memory() -> None:
    store = HostStore(MIB)
    buffer = Buffer(100)
    extent = _copy_in(store, buffer)
    store.close()
    store.close()
    for move in (store.write_piece, store.read_piece):
        with pytest.raises(StorageError, match="closed"):
            move(extent, extent.pieces[0], buffer.address)


def test_changed_bytes_are_found_by_their_checksum() -> None:
    store = HostStore(MIB, checksums=True)
    extent = _copy_in(store, Buffer(1000))
    store._slabs[0][extent.pieces[0].offset + 7] ^= 1
    with pytest.raises(
        StorageError, match="host memory slab 0 at offset 0, length 1000: read back"
    ):
        _copy_out(store, extent)
    store.close()
