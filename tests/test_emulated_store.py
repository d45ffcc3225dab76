"""A store that is as slow as a drive would be, and says that it is none."""

from __future__ import annotations

import ctypes
import time
from contextlib import closing

from teraio.executor.engine import TransferEngine
from teraio.executor.stores.emulated import EmulatedDrive, EmulatedStore
from teraio.executor.stores.host import SLAB_BYTES
from teraio.executor.transfer import TransferLabel

MIB = 1 << 20
LABEL = TransferLabel(tensor=1, name="", step=0, op=0)


def test_bytes_come_back_no_sooner_than_the_drive_would_bring_them() -> None:
    drive = EmulatedDrive(read_bytes_per_s=400 * MIB, write_bytes_per_s=200 * MIB)
    sent = ctypes.create_string_buffer(bytes(range(256)) * (16 * MIB // 256), 16 * MIB)
    back = ctypes.create_string_buffer(16 * MIB)
    with closing(EmulatedStore(drive, 16 * MIB)) as store, closing(TransferEngine()) as engine:
        extent = store.allocate(16 * MIB)
        began = time.perf_counter()
        engine.write(store, extent, ctypes.addressof(sent), 16 * MIB, LABEL).wait()
        wrote = time.perf_counter()
        engine.read(store, extent, ctypes.addressof(back), 16 * MIB, LABEL).wait()
        assert back.raw == sent.raw
        assert wrote - began >= 16 / 200
        assert time.perf_counter() - wrote >= 16 / 400


def test_latency_is_added_to_each_request() -> None:
    drive = EmulatedDrive(1 << 40, 1 << 40, latency_ns=20_000_000)
    content = ctypes.create_string_buffer(512)
    with closing(EmulatedStore(drive, MIB)) as store:
        extent = store.allocate(512)
        began = time.perf_counter()
        store.write_piece(extent, extent.pieces[0], ctypes.addressof(content))
        assert time.perf_counter() - began >= 0.02


def test_it_takes_more_memory_where_it_must() -> None:
    with closing(EmulatedStore(EmulatedDrive(1 << 30, 1 << 30), MIB)) as store:
        assert store.capacity_bytes == MIB
        extent = store.allocate(2 * MIB)
        assert sum(piece.nbytes for piece in extent.pieces) == 2 * MIB
        assert store.capacity_bytes == MIB + SLAB_BYTES


def test_its_name_says_what_it_is() -> None:
    drive = EmulatedDrive(6_700_000_000, 6_500_000_000)
    with closing(EmulatedStore(drive, 0)) as store:
        assert store.io_path == "emulated (6.70 GB/s read, 6.50 GB/s write)"
        assert store.tier == "ssd"
