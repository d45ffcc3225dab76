"""Moves bytes between memory and stores on worker threads, reads apart from writes.

The engine never copies or owns the caller's memory: whoever starts a transfer keeps the memory
at `address` alive, and leaves it alone, until the transfer is done.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from teraio.executor.stores.base import PIECE_BYTES, Extent, Piece, Store
from teraio.executor.transfer import Moment, TransferLabel, require_size
from teraio.profiler.errors import StorageError, StuckError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WORKERS: Final = 2
"""Threads per direction. Source: `benchmarks/posix_store.py --sweep`: a second thread, which
copies while the first waits for the drive, adds 10 to 40 %; four are no faster than two."""

IN_FLIGHT_BYTES: Final = 16 * PIECE_BYTES
"""64 MiB each way: room for more workers than any measurement asked for, yet a firm bound on
staging memory."""


LOOKS: Final = 10
"""How often a wait looks before it takes a request for stuck. Looks are counted and no clock is
read: a process that was stopped for an hour has not waited for an hour."""

_NS: Final = 1_000_000_000


class QueuedTransfer:
    """One tensor on its way. Times are `time.perf_counter_ns()`; 0 until they happen."""

    def __init__(
        self,
        lane: _Lane,
        pieces: Sequence[Piece],
        store: Store,
        move: Callable[[Piece], int],
        label: TransferLabel,
        *,
        urgent: bool,
        after: Moment | None,
    ) -> None:
        self.nbytes = sum(piece.nbytes for piece in pieces)
        self.label = label
        self.urgent = urgent
        self.after = after
        self.error: StorageError | None = None
        self.cancelled = False
        self.queued_ns = time.perf_counter_ns()
        self.started_ns = 0
        self.ended_ns = 0
        self._lane = lane
        self._store = store
        self._move = move
        self._waiting = deque(pieces)
        self._moving = 0
        self._over = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it is over, well or not; from then on the memory is left alone."""
        return self._over.is_set()

    def span(self) -> tuple[int, int] | None:
        """Return when its first piece was begun and its last one done."""
        return (self.started_ns, self.ended_ns) if self.done and self.started_ns else None

    def wait(self) -> None:
        """Block until it is over; raises the StorageError if it failed or was cancelled.

        Raises StuckError, and may not be over then, if a request of its lane is stuck.
        """
        self._lane.watch(self._over.wait)
        if self.error is not None:
            raise self.error

    def promote(self) -> None:
        """Move it ahead of all transfers that are not urgent."""
        self._lane.promote(self)

    def cancel(self) -> bool:
        """Take it back; True if nothing of it was done or will be.

        Not for finalizers: one may run while this thread is inside the engine.
        """
        return self._lane.cancel(self)

    # The lane calls the methods below, always under its lock.

    def _claim(self) -> Piece:
        self.started_ns = self.started_ns or time.perf_counter_ns()
        self._moving += 1
        return self._waiting.popleft()

    def _settle(self, error: StorageError | None) -> None:
        self._moving -= 1
        if error is not None:
            self._fail(error)
        else:
            self._end_if_over()

    def _fail(self, error: StorageError) -> None:
        """Take nothing of it up any more."""
        self.error = self.error or error
        self._waiting.clear()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if not self._waiting and not self._moving:
            self.ended_ns = time.perf_counter_ns()
            self._over.set()


class TransferEngine:
    """Worker threads that move pieces of transfers, urgent ones first, then in order.

    `in_flight_bytes` bounds what the workers of one direction move at the same time, and so the
    staging memory of a store; what waits in the queue takes no memory of the engine's.

    A request that does not come back for `timeout_s` seconds while someone waits ends the
    transfers of its direction; 0 is to wait for ever.
    """

    def __init__(
        self,
        *,
        readers: int = WORKERS,
        writers: int = WORKERS,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
        timeout_s: float = 0,
    ) -> None:
        self._reads = _Lane("read", readers, in_flight_bytes, timeout_s)
        self._writes = _Lane("write", writers, in_flight_bytes, timeout_s)

    def write(
        self,
        store: Store,
        extent: Extent,
        address: int,
        nbytes: int,
        label: TransferLabel,
        *,
        after: Moment | None = None,
    ) -> QueuedTransfer:
        """Start to write the `nbytes` bytes at `address` to an extent of that size.

        Raises StorageError if the sizes differ or the engine is closed; what goes wrong later
        is raised by `QueuedTransfer.wait`.
        """
        require_size(extent, nbytes, label)

        def move(piece: Piece) -> int:
            return store.write_piece(extent, piece, address)

        pieces = store.pieces(extent)
        transfer = QueuedTransfer(
            self._writes, pieces, store, move, label, urgent=False, after=after
        )
        return self._writes.submit(transfer)

    def read(
        self,
        store: Store,
        extent: Extent,
        address: int,
        nbytes: int,
        label: TransferLabel,
        *,
        urgent: bool = False,
        after: Moment | None = None,
    ) -> QueuedTransfer:
        """Start to read an extent of `nbytes` bytes into the memory at `address`.

        Raises as `write` does.
        """
        require_size(extent, nbytes, label)

        def move(piece: Piece) -> int:
            return store.read_piece(extent, piece, address)

        pieces = store.pieces(extent)
        transfer = QueuedTransfer(
            self._reads, pieces, store, move, label, urgent=urgent, after=after
        )
        return self._reads.submit(transfer)

    def close(self) -> None:
        """Finish what is queued and end the threads; may be called twice.

        Raises StuckError if that takes too long. A thread with a stuck request is left behind.
        """
        try:
            self._writes.close()
        finally:
            self._reads.close()


@dataclass(frozen=True, eq=False)
class _Request:
    """A piece that a store is moving."""

    transfer: QueuedTransfer
    piece: Piece
    began_ns: int


class _Lane:
    """The queue and the threads of one direction."""

    def __init__(self, verb: str, workers: int, in_flight_bytes: int, timeout_s: float) -> None:
        self._verb = verb
        self._limit = in_flight_bytes
        self._look_s = timeout_s / LOOKS or None
        self._in_flight = 0
        self._closing = False
        self._requests: set[_Request] = set()
        self._stuck: StuckError | None = None
        self._urgent: deque[QueuedTransfer] = deque()
        self._normal: deque[QueuedTransfer] = deque()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"teraio-{verb}-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, transfer: QueuedTransfer) -> QueuedTransfer:
        with self._changed:
            if self._stuck is not None:
                raise self._stuck
            if self._closing:
                msg = f"cannot {self._verb}: the transfer engine is closed; {transfer.label}"
                raise StorageError(msg)
            if transfer.nbytes:
                self._queue_of(transfer).append(transfer)
                self._changed.notify_all()
            else:
                transfer._end_if_over()
        return transfer

    def promote(self, transfer: QueuedTransfer) -> None:
        with self._changed:
            if not transfer.urgent and transfer in self._normal:
                self._normal.remove(transfer)
                self._urgent.append(transfer)
            transfer.urgent = True

    def cancel(self, transfer: QueuedTransfer) -> bool:
        with self._changed:
            if transfer.started_ns or transfer not in self._queue_of(transfer):
                return False
            self._queue_of(transfer).remove(transfer)
            transfer.cancelled = True
            transfer._fail(StorageError(f"the {self._verb} was cancelled; {transfer.label}"))
            return True

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            self._join(thread)

    def watch(self, is_over: Callable[[float | None], bool]) -> None:
        """Return when `is_over(seconds)`, which waits at most so long, says so.

        Raises StuckError once a request has been in a store's hands for the timeout.
        """
        seen: Counter[_Request] = Counter()
        while not is_over(self._look_s):
            if self._stuck is not None:
                raise self._stuck
            seen = Counter({request: seen[request] + 1 for request in self._under_way()})
            for request, looks in seen.items():
                if looks > LOOKS:
                    raise self._give_up(request)

    def _join(self, thread: threading.Thread) -> None:
        def is_over(seconds: float | None) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        if self._stuck is None:
            self.watch(is_over)
        else:
            is_over(self._look_s)

    def _under_way(self) -> list[_Request]:
        with self._changed:
            return list(self._requests)

    def _give_up(self, request: _Request) -> StuckError:
        """End all transfers of this lane, as far as they are not in a store's hands."""
        transfer, piece = request.transfer, request.piece
        seconds = (time.perf_counter_ns() - request.began_ns) / _NS
        place = transfer._store.describe(piece)
        msg = f"the {self._verb} of {place} has not come back for {seconds:.3g} s; {transfer.label}"
        hint = (
            "the drive or its file system does not answer; look at the kernel's log, "
            "or allow more time with `--io-timeout`"
        )
        with self._changed:
            self._stuck = StuckError(msg, hint=hint)
            for queued in (*self._urgent, *self._normal):
                queued._fail(self._stuck)
            self._urgent.clear()
            self._normal.clear()
            return self._stuck

    def _queue_of(self, transfer: QueuedTransfer) -> deque[QueuedTransfer]:
        return self._urgent if transfer.urgent else self._normal

    def _work(self) -> None:
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        """Move the next piece; False when the lane is closed and empty."""
        claimed = self._claim()
        if claimed is None:
            return False
        transfer, piece = claimed
        error = self._attempt(transfer, piece)
        with self._changed:
            self._in_flight -= piece.nbytes
            if error is not None and transfer._waiting:
                self._queue_of(transfer).remove(transfer)
            transfer._settle(error)
            self._changed.notify_all()
        return True

    def _attempt(self, transfer: QueuedTransfer, piece: Piece) -> StorageError | None:
        """Move a piece.

        Whatever goes wrong becomes the transfer's error, never the thread's end.
        """
        try:
            if transfer.after is not None:
                transfer.after.wait()
            with self._requested(transfer, piece):
                moved = transfer._move(piece)
        except StorageError as error:
            return _labelled(str(error), transfer.label, error.hint)
        except BaseException as error:
            return self._failure(transfer, piece, f"{type(error).__name__}: {error}")
        if moved == piece.nbytes:
            return None
        only = "only " if moved < piece.nbytes else ""
        return self._failure(transfer, piece, f"{only}{moved} bytes moved")

    def _failure(self, transfer: QueuedTransfer, piece: Piece, why: str) -> StorageError:
        what = f"cannot {self._verb} {transfer._store.describe(piece)}: {why}"
        return _labelled(what, transfer.label, "")

    @contextmanager
    def _requested(self, transfer: QueuedTransfer, piece: Piece) -> Iterator[None]:
        request = _Request(transfer, piece, time.perf_counter_ns())
        with self._changed:
            self._requests.add(request)
        try:
            yield
        finally:
            with self._changed:
                self._requests.discard(request)

    def _claim(self) -> tuple[QueuedTransfer, Piece] | None:
        with self._changed:
            while True:
                queue = self._urgent or self._normal
                if queue and self._fits(queue[0]._waiting[0]):
                    break
                if self._closing and not queue:
                    return None
                self._changed.wait()
            transfer = queue[0]
            piece = transfer._claim()
            if not transfer._waiting:
                queue.popleft()
            self._in_flight += piece.nbytes
            return transfer, piece

    def _fits(self, piece: Piece) -> bool:
        return not self._in_flight or self._in_flight + piece.nbytes <= self._limit


def _labelled(what: str, label: TransferLabel, hint: str) -> StorageError:
    return StorageError(f"{what}; {label}", hint=hint)
