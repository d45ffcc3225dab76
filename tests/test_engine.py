"""The transfer engine: every outcome is the right bytes or one clear error, and nothing hangs."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from example_counts import examples
from faulty_store import FaultyStore, Gate
from hypothesis import given
from hypothesis import strategies as st
from raw_memory import Buffer, nothing_leaks

from teraio.executor.engine import QueuedTransfer, TransferEngine
from teraio.executor.stores.host import HostStore
from teraio.executor.stores.posix import PosixStore
from teraio.executor.transfer import TransferLabel
from teraio.profiler.errors import StorageError, StuckError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from teraio.executor.stores.base import Piece, Store

PIECE = 4096
LABEL = TransferLabel(tensor=17, name="layers.3.mlp.weight", step=4, op=120)
NAMED = "tensor 17 `layers.3.mlp.weight`, step 4, op 120"


@pytest.fixture
def memory() -> Iterator[HostStore]:
    opened = HostStore(64 * PIECE, piece_bytes=PIECE)
    yield opened
    opened.close()


@pytest.fixture
def engine(memory: HostStore) -> Iterator[TransferEngine]:
    assert memory  # closed after the engine that uses it
    opened = TransferEngine()
    yield opened
    opened.close()


def _write(engine: TransferEngine, store: Store, buffer: Buffer) -> QueuedTransfer:
    extent = store.allocate(buffer.nbytes)
    return engine.write(store, extent, buffer.address, buffer.nbytes, LABEL)


def _held(engine: TransferEngine, memory: HostStore) -> tuple[FaultyStore, Gate, Buffer]:
    """A store whose gate already holds both of the engine's write threads."""
    gate = Gate()
    store = FaultyStore(memory, gate)
    buffer = Buffer(2 * PIECE)
    _write(engine, store, buffer)
    gate.wait_for(2)
    return store, gate, buffer


# Right bytes


@pytest.mark.parametrize("nbytes", [0, 1, PIECE, PIECE + 1, 20 * PIECE + 7])
def test_bytes_go_and_come_back(engine: TransferEngine, memory: HostStore, nbytes: int) -> None:
    out, back = Buffer(nbytes), Buffer(nbytes, content=bytes(nbytes))
    extent = memory.allocate(nbytes)
    write = engine.write(memory, extent, out.address, nbytes, LABEL)
    write.wait()
    read = engine.read(memory, extent, back.address, nbytes, LABEL, urgent=True)
    read.wait()
    assert back.content == out.content
    assert back.guards_intact
    for transfer in (write, read):
        assert transfer.done
        assert transfer.error is None
        assert transfer.nbytes == nbytes
        assert transfer.ended_ns >= transfer.queued_ns > 0
        if nbytes:
            assert transfer.ended_ns >= transfer.started_ns >= transfer.queued_ns


@examples(15)
@given(
    sizes=st.lists(st.integers(0, 5 * PIECE), min_size=1, max_size=20),
    seed=st.integers(0, 1000),
    readers=st.integers(1, 4),
)
def test_many_transfers_at_once_keep_their_bytes_apart(
    sizes: list[int], seed: int, readers: int
) -> None:
    memory = HostStore(200 * PIECE, piece_bytes=PIECE)
    engine = TransferEngine(readers=readers, writers=readers, in_flight_bytes=2 * PIECE)
    outs = [Buffer(size) for size in sizes]
    writes = []
    extents = [memory.allocate(size) for size in sizes]
    for out, extent in zip(outs, extents, strict=True):
        writes.append(engine.write(memory, extent, out.address, out.nbytes, LABEL))
    for write in writes:
        write.wait()
    numbers = random.Random(seed).sample(range(len(sizes)), len(sizes))
    backs = {number: Buffer(sizes[number]) for number in numbers}
    reads = [
        engine.read(memory, extents[n], backs[n].address, sizes[n], LABEL, urgent=n % 3 == 0)
        for n in numbers
    ]
    for read in reads[::2]:
        read.promote()
    for read in reads:
        read.wait()
    assert all(backs[number].content == outs[number].content for number in numbers)
    engine.close()
    memory.close()


def test_ssd_bytes_go_and_come_back_through_many_threads(tmp_path: Path) -> None:
    store = PosixStore([tmp_path, tmp_path], 0, piece_bytes=PIECE)
    engine = TransferEngine(readers=4, writers=4)
    out, back = Buffer(50 * PIECE + 3, shift=64), Buffer(50 * PIECE + 3, shift=64)
    extent = store.allocate(out.nbytes)
    engine.write(store, extent, out.address, out.nbytes, LABEL).wait()
    engine.read(store, extent, back.address, back.nbytes, LABEL).wait()
    assert back.content == out.content
    engine.close()
    store.close()


# Order


def _order_of(store: FaultyStore) -> list[int]:
    """The extents in the order in which their first pieces moved."""
    return list(dict.fromkeys(extent for _, extent, _ in store.moved))


def test_transfers_start_in_order(memory: HostStore) -> None:
    engine = TransferEngine(writers=1)
    gate = Gate()
    store = FaultyStore(memory, gate)
    buffers = [Buffer(2 * PIECE) for _ in range(5)]
    transfers = [_write(engine, store, buffer) for buffer in buffers]
    gate.open()
    for transfer in transfers:
        transfer.wait()
    assert _order_of(store) == [0, 1, 2, 3, 4]
    assert [piece for _, _, piece in store.moved] == [0, PIECE] * 5
    engine.close()


@pytest.mark.parametrize("how", ["urgent", "promoted"])
def test_an_urgent_read_overtakes_what_waits(memory: HostStore, how: str) -> None:
    engine = TransferEngine(readers=1)
    gate = Gate()
    store = FaultyStore(memory, gate)
    buffers = [Buffer(PIECE) for _ in range(4)]
    extents = [store.allocate(PIECE) for _ in buffers]
    reads = []
    for number, (buffer, extent) in enumerate(zip(buffers, extents, strict=True)):
        urgent = how == "urgent" and number == 3
        reads.append(engine.read(store, extent, buffer.address, PIECE, LABEL, urgent=urgent))
        if number == 0:
            gate.wait_for(1)
    if how == "promoted":
        reads[3].promote()
        reads[0].promote()  # moving already: nothing to gain, nothing to lose
    gate.open()
    for read in reads:
        read.wait()
    assert _order_of(store) == [0, 3, 1, 2]
    engine.close()


def test_a_write_does_not_hold_back_a_read(engine: TransferEngine, memory: HostStore) -> None:
    extent = memory.allocate(PIECE)
    back = Buffer(PIECE)
    store, gate, _ = _held(engine, memory)
    engine.read(memory, extent, back.address, PIECE, LABEL).wait()
    assert back.content == bytes(PIECE)
    assert store.moved == []
    gate.open()
    engine.close()


def test_several_threads_take_the_pieces_of_one_transfer(memory: HostStore) -> None:
    engine = TransferEngine(writers=3)
    together = threading.Barrier(3)

    def meet(_piece: Piece) -> None:
        together.wait(timeout=60)  # too few threads break the barrier, which is an error

    buffer = Buffer(3 * PIECE)
    _write(engine, FaultyStore(memory, meet), buffer).wait()
    engine.close()


def test_no_more_bytes_move_at_once_than_allowed(memory: HostStore) -> None:
    engine = TransferEngine(writers=4, in_flight_bytes=2 * PIECE)
    gate = Gate()
    store = FaultyStore(memory, gate)
    buffers = [Buffer(3 * PIECE), Buffer(PIECE)]
    transfers = [_write(engine, store, buffer) for buffer in buffers]
    gate.wait_for(2)
    assert not gate.entered.acquire(timeout=0.05)
    gate.open()
    for transfer in transfers:
        transfer.wait()
    engine.close()


def test_a_piece_larger_than_the_bound_moves_alone(memory: HostStore) -> None:
    engine = TransferEngine(in_flight_bytes=1)
    buffer = Buffer(3 * PIECE)
    _write(engine, memory, buffer).wait()
    engine.close()


# Cancelling


def test_a_queued_transfer_can_be_taken_back(engine: TransferEngine, memory: HostStore) -> None:
    store, gate, _ = _held(engine, memory)
    buffer = Buffer(PIECE)
    queued = _write(engine, store, buffer)
    assert not queued.done
    assert queued.cancel()
    assert queued.done
    assert queued.cancelled
    assert not queued.cancel()
    gate.open()
    engine.close()
    assert 1 not in _order_of(store)
    with pytest.raises(StorageError, match=f"the write was cancelled; {NAMED}"):
        queued.wait()


def test_a_transfer_under_way_is_never_half_cancelled(
    engine: TransferEngine, memory: HostStore
) -> None:
    gate = Gate()
    store = FaultyStore(memory, gate)
    buffer = Buffer(5 * PIECE)
    transfer = _write(engine, store, buffer)
    gate.wait_for(1)
    assert not transfer.cancel()
    gate.open()
    transfer.wait()
    assert not transfer.cancel()
    assert not transfer.cancelled
    assert len(store.moved) == 5


# Faults


def _fail(kind: str, piece: Piece) -> int | None:
    if kind == "storage error":
        msg = "cannot write `/ssd/data-0` at offset 8, length 9: EIO (Input/output error)"
        raise StorageError(msg, hint="look at the kernel's log")
    if kind == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind == "bug":
        raise ZeroDivisionError
    if kind == "exit":
        raise SystemExit(3)
    return {"short": piece.nbytes - 1, "nothing": 0, "long": piece.nbytes + 1}[kind]


@pytest.mark.parametrize("verb", ["write", "read"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("storage error", "cannot write `/ssd/data-0` at offset 8, length 9: EIO"),
        (
            "full",
            "cannot {verb} host memory slab 0 at offset 4096, length 4096: "
            "OSError: [Errno 28] No space left on device",
        ),
        ("bug", "ZeroDivisionError"),
        ("exit", "SystemExit: 3"),
        (
            "short",
            "cannot {verb} host memory slab 0 at offset 4096, length 4096: only 4095 bytes moved",
        ),
        (
            "nothing",
            "cannot {verb} host memory slab 0 at offset 4096, length 4096: only 0 bytes moved",
        ),
        ("long", "cannot {verb} host memory slab 0 at offset 4096, length 4096: 4097 bytes moved"),
    ],
)
def test_a_fault_is_one_labelled_error_and_the_engine_goes_on(
    engine: TransferEngine, memory: HostStore, verb: str, kind: str, said: str
) -> None:
    store = FaultyStore(memory, lambda piece: _fail(kind, piece) if piece.start == PIECE else None)
    extent = store.allocate(6 * PIECE)
    buffer = Buffer(6 * PIECE)
    start = engine.write if verb == "write" else engine.read
    bad = start(store, extent, buffer.address, buffer.nbytes, LABEL)
    with pytest.raises(StorageError) as caught:
        bad.wait()
    assert said.format(verb=verb) in str(caught.value)
    assert str(caught.value).endswith(f"; {NAMED}")
    assert caught.value.hint == ("look at the kernel's log" if kind == "storage error" else "")
    assert bad.done
    assert bad.error is caught.value
    for _ in range(4):
        start(memory, extent, buffer.address, buffer.nbytes, LABEL).wait()


def test_after_a_fault_no_piece_touches_the_memory_any_more(
    engine: TransferEngine, memory: HostStore
) -> None:
    gate = Gate()

    def fault(piece: Piece) -> None:
        if piece.start == 0:
            gate(piece)
        elif piece.start == PIECE:
            raise ZeroDivisionError

    store = FaultyStore(memory, fault)
    buffer = Buffer(50 * PIECE)
    bad = _write(engine, store, buffer)
    gate.wait_for(1)
    other = Buffer(PIECE)
    _write(engine, memory, other).wait()  # the second thread has met the fault by now
    assert not bad.done
    gate.open()
    with pytest.raises(StorageError, match="ZeroDivisionError"):
        bad.wait()
    assert store.moved == [("write", 0, 0)]


def test_every_piece_failing_is_still_one_error(memory: HostStore) -> None:
    engine = TransferEngine(writers=4)
    store = FaultyStore(memory, lambda piece: _fail("bug", piece))
    buffer = Buffer(8 * PIECE)
    transfers = [_write(engine, store, buffer) for _ in range(5)]
    for transfer in transfers:
        with pytest.raises(StorageError, match="ZeroDivisionError"):
            transfer.wait()
    engine.close()


def test_sizes_that_differ_are_refused(engine: TransferEngine, memory: HostStore) -> None:
    extent = memory.allocate(100)
    buffer = Buffer(200)
    for start in (engine.write, engine.read):
        with pytest.raises(StorageError, match=f"100 bytes cannot hold 200 bytes; {NAMED}"):
            start(memory, extent, buffer.address, 200, LABEL)


def test_a_label_without_a_name_has_none() -> None:
    assert str(TransferLabel(tensor=3, name="", step=0, op=1)) == "tensor 3, step 0, op 1"


# Requests that do not come back


def _watched(**options: Any) -> TransferEngine:
    return TransferEngine(timeout_s=0.2, **options)


def _let_go(gate: Gate, engine: TransferEngine) -> None:
    """Open a gate, and return when no thread uses any memory."""
    gate.open()
    while engine._writes._requests or engine._reads._requests:
        time.sleep(0.001)


@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_stuck_request_is_named(memory: HostStore, verb: str) -> None:
    gate, buffer = Gate(), Buffer(3 * PIECE)
    memory.allocate(PIECE)
    extent = memory.allocate(buffer.nbytes)
    with nothing_leaks():
        engine = _watched()
        start = engine.write if verb == "write" else engine.read
        store = FaultyStore(memory, lambda piece: gate(piece) if piece.start == PIECE else None)
        stuck = start(store, extent, buffer.address, buffer.nbytes, LABEL)
        with pytest.raises(StuckError) as caught:
            stuck.wait()
        said = re.fullmatch(
            rf"the {verb} of host memory slab 0 at offset 8192, length 4096 "
            rf"has not come back for ([0-9.]+) s; {NAMED}",
            str(caught.value),
        )
        assert said is not None, caught.value
        assert float(said[1]) >= 0.2
        assert "--io-timeout" in caught.value.hint
        assert not stuck.done, "its memory is not free yet"
        _let_go(gate, engine)
        engine.close()
        assert stuck.done


def test_all_that_waits_behind_a_stuck_request_fails_at_once(memory: HostStore) -> None:
    engine = _watched()
    store, gate, _ = _held(engine, memory)
    waiting = _write(engine, store, Buffer(PIECE))
    with pytest.raises(StuckError, match="has not come back"):
        waiting.wait()
    assert waiting.done
    begun = time.perf_counter()
    with pytest.raises(StuckError):
        _write(engine, memory, Buffer(PIECE))
    engine.close()  # leaves the threads that are stuck
    assert time.perf_counter() - begun < 0.2
    _let_go(gate, engine)


def test_the_other_direction_goes_on(memory: HostStore) -> None:
    engine = _watched()
    store, gate, _ = _held(engine, memory)
    with pytest.raises(StuckError):
        _write(engine, store, Buffer(PIECE)).wait()
    buffer = Buffer(PIECE)
    engine.read(memory, memory.allocate(PIECE), buffer.address, PIECE, LABEL).wait()
    engine.close()
    _let_go(gate, engine)


def test_many_requests_that_come_back_are_not_one_that_does_not(memory: HostStore) -> None:
    engine = _watched(writers=1)

    def slow(_piece: Piece) -> None:
        time.sleep(0.03)

    buffer = Buffer(20 * PIECE)
    begun = time.perf_counter()
    _write(engine, FaultyStore(memory, slow), buffer).wait()
    assert time.perf_counter() - begun > 0.4, "longer than the timeout"
    engine.close()


def test_waiting_for_the_device_is_no_request(memory: HostStore) -> None:
    engine, gate = _watched(), threading.Event()

    class Later:
        def wait(self) -> None:
            gate.wait()

    buffer = Buffer(PIECE)
    extent = memory.allocate(PIECE)
    write = engine.write(memory, extent, buffer.address, PIECE, LABEL, after=Later())
    opened = threading.Timer(0.5, gate.set)
    opened.start()
    write.wait()
    assert write.ended_ns - write.queued_ns > 400_000_000
    engine.close()
    opened.join()


def test_closing_meets_a_stuck_request_too(memory: HostStore) -> None:
    engine, gate, buffer = _watched(), Gate(), Buffer(PIECE)
    _write(engine, FaultyStore(memory, gate), buffer)
    gate.wait_for(1)
    with pytest.raises(StuckError, match="the write of host memory slab 0"):
        engine.close()
    engine.close()
    _let_go(gate, engine)


def test_a_process_that_was_stopped_has_not_waited() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, str(Path(__file__).parent)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


STOPPED = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from faulty_store import FaultyStore
from teraio.executor.engine import TransferEngine
from teraio.executor.stores.host import HostStore
from teraio.executor.transfer import TransferLabel

memory = HostStore(4096)
goes_on = time.monotonic() + 2
store = FaultyStore(memory, lambda _: time.sleep(max(goes_on - time.monotonic(), 0)) or None)
engine = TransferEngine(timeout_s=1)
extent = memory.allocate(4096)
write = engine.write(store, extent, memory._addresses[0], 4096, TransferLabel(1, "", 0, 0))
if os.fork() == 0:  # stops its parent for the time that the request takes, and longer
    time.sleep(0.2)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(2)
    os.kill(os.getppid(), signal.SIGCONT)
    os._exit(0)
write.wait()
assert write.ended_ns - write.started_ns > 1.9e9
engine.close()
"""


# Ending


def test_close_finishes_what_is_queued_and_leaves_no_thread(memory: HostStore) -> None:
    with nothing_leaks():
        engine = TransferEngine(readers=3, writers=1)
        names = {t.name for t in threading.enumerate() if t.name.startswith("teraio-")}
        assert names == {"teraio-read-0", "teraio-read-1", "teraio-read-2", "teraio-write-0"}
        gate = Gate()
        buffer = Buffer(3 * PIECE)
        transfers = [_write(engine, FaultyStore(memory, gate), buffer) for _ in range(4)]
        gate.open()
        engine.close()
        assert all(transfer.done and transfer.error is None for transfer in transfers)
        engine.close()


def test_a_closed_engine_takes_nothing(engine: TransferEngine, memory: HostStore) -> None:
    engine.close()
    buffer = Buffer(PIECE)
    with pytest.raises(StorageError, match=f"the transfer engine is closed; {NAMED}"):
        _write(engine, memory, buffer)


def test_an_interrupted_wait_leaves_the_engine_closable(memory: HostStore) -> None:
    with nothing_leaks():
        engine = TransferEngine()
        store, gate, _buffer = _held(engine, memory)
        waiting = Buffer(PIECE)
        queued = _write(engine, store, waiting)
        ctrl_c = (threading.main_thread().ident, signal.SIGINT)
        interrupt = threading.Timer(0.05, signal.pthread_kill, ctrl_c)
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            queued.wait()
        interrupt.join()
        gate.open()
        engine.close()
        assert queued.done


def test_a_failing_run_leaves_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    with nothing_leaks():
        inner = PosixStore([tmp_path], 0, piece_bytes=PIECE)
        store = FaultyStore(inner, lambda piece: _fail("full", piece) if piece.start else None)
        engine = TransferEngine()
        buffer = Buffer(4 * PIECE)
        with pytest.raises(StorageError, match="No space left"):
            _write(engine, store, buffer).wait()
        engine.close()
        store.close()
    assert list(tmp_path.iterdir()) == []


def test_moving_bytes_needs_no_torch() -> None:
    script = (
        "import sys, teraio.executor.engine, teraio.executor.bandwidth, "
        "teraio.executor.stores.posix, teraio.executor.stores.host; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
