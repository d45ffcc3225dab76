"""CUDA as the device: streams, events, pinned memory and copies.

Raw addresses are copied with the runtime's own call, so that no operator is dispatched in the
program; `cuda.bindings`, which has it, comes with every CUDA build of torch.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from teraio.executor.engine import TransferEngine
from teraio.executor.memory import memory_for
from teraio.executor.stores.base import PIECE_BYTES
from teraio.executor.stores.host import HostStore
from teraio.executor.stores.memory import BouncePool
from teraio.executor.transfer import require_size
from teraio.planner.plan import HOST
from teraio.planner.units import format_bytes
from teraio.profiler.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from teraio.executor.stores.base import Extent, Store
    from teraio.executor.stores.memory import Reach
    from teraio.executor.transfer import Moment, Mover, TransferLabel

_NS_PER_MS: Final = 1_000_000

_SEGMENT_BYTES: Final = 20 << 20
"""What torch's allocator may hold beyond its limit: it checks the bytes that were asked for, and
takes whole segments of this size."""

_cuda: Any = torch.cuda  # its classes have no annotations


def _runtime() -> Any:
    """Return the module of CUDA's runtime calls; raises UsageError where it is missing."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        msg = "the package `cuda-bindings`, which comes with torch for CUDA, is missing"
        raise UsageError(msg, hint="`pip install cuda-bindings`") from error
    return runtime


class CudaMoment:
    """All that was launched on the current stream so far."""

    def __init__(self) -> None:
        self.event: torch.Event = _cuda.Event(blocking=True)
        self.event.record()

    def wait(self) -> None:
        """Block this thread, and no other, until the device has come so far."""
        self.event.synchronize()


class CudaReach:
    """Copies on a stream of each thread's own, through pinned staging memory where asked."""

    def __init__(self) -> None:
        self._runtime = _runtime()
        self._own = threading.local()
        self._device = torch.cuda.current_device()
        self._pool = BouncePool(PIECE_BYTES, self)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes between two addresses, each on the host or the device; returns when done."""
        stream = self._stream()
        self.enqueue(target, source, nbytes, stream)
        stream.synchronize()

    def enqueue(self, target: int, source: int, nbytes: int, stream: torch.cuda.Stream) -> None:
        """Start a copy on a stream; raises StorageError if the runtime refuses."""
        runtime = self._runtime
        kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
        (status,) = runtime.cudaMemcpyAsync(target, source, nbytes, kind, stream.cuda_stream)
        self._require(status, f"cannot copy {nbytes} bytes to or from the device")

    @contextmanager
    def outgoing(self, address: int, nbytes: int) -> Iterator[int]:
        """Lend pinned memory that has the bytes at `address`."""
        with self._pool.lend(nbytes) as staging:
            self.copy(staging, address, nbytes)
            yield staging

    @contextmanager
    def incoming(self, address: int, nbytes: int) -> Iterator[int]:
        """Lend pinned memory whose bytes are copied to `address` at the end."""
        with self._pool.lend(nbytes) as staging:
            yield staging
            self.copy(address, staging, nbytes)

    def pin(self, address: int, nbytes: int) -> None:
        """Register host memory; raises StorageError with the bytes if the system refuses."""
        (status,) = self._runtime.cudaHostRegister(address, nbytes, 0)
        hint = "make the plan with less `--host-memory`, or raise the limit on locked memory"
        self._require(status, f"cannot pin {format_bytes(nbytes)} of host memory", hint)

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        self._runtime.cudaHostUnregister(address)

    def close(self) -> None:
        """Give the staging memory back."""
        self._pool.close()

    def _stream(self) -> torch.cuda.Stream:
        stream: torch.cuda.Stream | None = getattr(self._own, "stream", None)
        if stream is None:
            torch.cuda.set_device(self._device)  # a new thread has none
            stream = self._own.stream = _cuda.Stream()
        return stream

    def _require(self, status: Any, what: str, hint: str = "") -> None:
        if int(status):
            _, name = self._runtime.cudaGetErrorName(status)
            msg = f"{what}: {name.decode()}"
            raise StorageError(msg, hint=hint)


class StreamTransfer:
    """A copy in a stream. Waiting for it makes the device wait, not the host."""

    def __init__(
        self, mover: StreamMover, event: torch.Event, nbytes: int, *, to_device: bool
    ) -> None:
        self.nbytes = nbytes
        self.queued_ns = time.perf_counter_ns()
        self._mover, self._event, self._to_device = mover, event, to_device
        self._is_ordered = False

    @property
    def done(self) -> bool:
        """Whether it is over, or all that is launched from now on comes after it."""
        return self._is_ordered or self._event.query()

    @property
    def ended_ns(self) -> int:
        """When it ended, by the host's clock; for a mover that is `timed`."""
        return self._mover.host_ns(self._event)

    def span(self) -> None:
        """Return None: the host does not ask the device when."""

    def wait(self) -> None:
        """Let the current stream go on only after it."""
        torch.cuda.current_stream().wait_event(self._event)
        self._is_ordered = True

    def promote(self) -> None:
        """Do nothing: what is in a stream keeps its place."""

    def cancel(self) -> bool:
        """Give up the result of a write, which only read the device's memory."""
        return not self._to_device


class StreamMover:
    """Moves bytes to and from pinned host memory on streams: each way one, and one for what is
    urgent.

    With `timed`, transfers know when they ended.
    """

    def __init__(self, reach: CudaReach, *, timed: bool = False) -> None:
        self._reach = reach
        self._out, self._back = _cuda.Stream(), _cuda.Stream()
        self._urgent = _cuda.Stream(priority=-1)
        self._timed = timed
        self._origin: torch.Event = _cuda.Event(enable_timing=timed)
        self._origin.record()
        self._origin.synchronize()
        self._origin_ns = time.perf_counter_ns()

    def write(
        self,
        store: Store,
        extent: Extent,
        address: int,
        nbytes: int,
        label: TransferLabel,
        *,
        after: Moment | None = None,
    ) -> StreamTransfer:
        """Start to copy memory of the device to an extent of a `HostStore`."""
        host = _require_host(store, extent, nbytes, label)
        event = self._begin(self._out, after)
        for piece in extent.pieces:
            self._reach.enqueue(host.place(piece), address + piece.start, piece.nbytes, self._out)
        return self._end(event, self._out, nbytes, to_device=False)

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
    ) -> StreamTransfer:
        """Start to copy an extent of a `HostStore` to memory of the device."""
        host = _require_host(store, extent, nbytes, label)
        stream = self._urgent if urgent else self._back
        event = self._begin(stream, after)
        for piece in extent.pieces:
            self._reach.enqueue(address + piece.start, host.place(piece), piece.nbytes, stream)
        return self._end(event, stream, nbytes, to_device=True)

    def host_ns(self, event: torch.Event) -> int:
        """Return when an event of this mover happened, by the host's clock."""
        return self._origin_ns + round(self._origin.elapsed_time(event) * _NS_PER_MS)

    def close(self) -> None:
        """Wait until all copies are over."""
        for stream in (self._out, self._back, self._urgent):
            stream.synchronize()

    def _begin(self, stream: torch.cuda.Stream, after: Moment | None) -> torch.Event:
        if isinstance(after, CudaMoment):
            stream.wait_event(after.event)
        event: torch.Event = _cuda.Event(enable_timing=self._timed)
        return event

    def _end(
        self, event: torch.Event, stream: torch.cuda.Stream, nbytes: int, *, to_device: bool
    ) -> StreamTransfer:
        event.record(stream)
        return StreamTransfer(self, event, nbytes, to_device=to_device)


class CudaDevice:
    """The current CUDA device, whose allocator and streams are torch's."""

    runs_ahead = True

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self.memory = memory_for(self.torch_device)
        self._reach = CudaReach()
        self.reach: Reach = self._reach

    def now(self) -> CudaMoment:
        """Return the moment when all that is launched so far is done."""
        return CudaMoment()

    def movers(
        self, stores: Mapping[str, Store], *, timed: bool = False, timeout_s: float = 0
    ) -> dict[str, Mover]:
        """Return streams for pinned host memory, and an engine for all other stores.

        Host memory with checksums goes through the engine: it is read on the way.
        """
        engine = TransferEngine(timeout_s=timeout_s)
        movers: dict[str, Mover] = dict.fromkeys(stores, engine)
        host = stores.get(HOST)
        if isinstance(host, HostStore) and not host.has_checksums:
            movers[HOST] = StreamMover(self._reach, timed=timed)
        return movers

    @contextmanager
    def lend_memory(self, nbytes: int) -> Iterator[int]:
        """Lend the address of memory on the device."""
        memory = torch.zeros(nbytes, dtype=torch.uint8, device=self.torch_device)
        torch.cuda.synchronize()
        yield memory.data_ptr()

    @contextmanager
    def enforce(self, budget_bytes: int) -> Iterator[None]:
        """Hold torch's allocator to the budget; more is `torch.OutOfMemoryError`."""
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        limit = max(budget_bytes - _SEGMENT_BYTES, 0)
        torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0))
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def allocator(self) -> dict[str, int]:
        """Return what torch's allocator held and gave out at most, in bytes, and its retries."""
        stats = torch.cuda.memory_stats()
        return {
            "reserved_bytes": stats["reserved_bytes.all.peak"],
            "allocated_bytes": stats["allocated_bytes.all.peak"],
            "retries": stats["num_alloc_retries"],
        }

    def give_back_cached(self) -> None:
        """Have torch's allocator give back what it holds but does not use."""
        torch.cuda.empty_cache()

    def close(self) -> None:
        """Give the staging memory back."""
        self._reach.close()


def _require_host(store: Store, extent: Extent, nbytes: int, label: TransferLabel) -> HostStore:
    if not isinstance(store, HostStore):
        msg = f"a stream cannot reach the store of tier `{store.tier}`; {label}"
        raise StorageError(msg)
    require_size(extent, nbytes, label)
    return store
