"""What a run will get from its SSD folders and from host memory, measured through the store and
the engine that a run uses.

The rates are those of as many bytes each way, started at once: a run reads what it wrote, and its
optimizer reads the next states while the last ones are written, so a plan with the rates of one
direction alone would promise too much on a drive whose directions share its bandwidth. A GPU's
link has a copy engine each way, and is fast enough that a step mostly writes in its forward and
reads in its backward pass: its rates are those of each direction alone. `source` names both.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from teraio.executor.engine import TransferEngine
from teraio.executor.stores.base import PIECE_BYTES, Extent, Store
from teraio.executor.stores.host import HostStore
from teraio.executor.stores.memory import HostReach, aligned_memory
from teraio.executor.stores.opening import StoreOptions, open_ssd
from teraio.executor.transfer import Mover, Transfer, TransferLabel
from teraio.planner.plan import HOST, SSD
from teraio.planner.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from teraio.executor.device import Device
    from teraio.executor.stores.memory import Reach

TOTAL_BYTES: Final = 256 << 20
ROUNDS: Final = 3
LATENCY_READS: Final = 64
BLOCK_BYTES: Final = 4096
MISALIGNMENT: Final = 64
"""Bytes: torch aligns CPU tensors to 64, so that most of them do not start at a page."""

_LABEL: Final = TransferLabel(tensor=0, name="measurement", step=0, op=0)


@dataclass(frozen=True)
class Rates:
    """Bytes per second: each direction alone, and both at once."""

    write_alone: int
    read_alone: int
    write: int
    read: int


def measure(
    folders: Sequence[Path], *, io: str = "auto", total_bytes: int = TOTAL_BYTES
) -> dict[str, dict[str, int | str]]:
    """Return the JSON object of a hardware file, from moving `total_bytes` each way and round.

    Takes twice `total_bytes` in the folders, as much in host memory, and as much on the device.
    On a machine without a GPU the host link is a copy in host memory. Raises StorageError if a
    folder cannot be used, or not in the way that `io` asks for.
    """
    with ExitStack() as stack:
        machine = _Machine(_gpu())
        stack.callback(machine.close)
        options = StoreOptions(folders, io)
        room = 2 * total_bytes + BLOCK_BYTES
        ssd = open_ssd(room, options, machine.reach, on_gpu=machine.has_gpu)
        stack.callback(ssd.close)
        host = HostStore(2 * total_bytes, reach=machine.reach)
        stack.callback(host.close)
        memory = machine.memory(2 * total_bytes + MISALIGNMENT)
        address = stack.enter_context(memory) + MISALIGNMENT
        movers = machine.movers({SSD: ssd, HOST: host})
        for mover in movers.values():
            stack.callback(mover.close)
        on_ssd = _Path(machine, movers[SSD], ssd, address)
        latency = on_ssd.latency_ns()
        drives = on_ssd.rates(total_bytes)
        link = _Path(machine, movers[HOST], host, address).rates(total_bytes)
        to_host, to_gpu = link.write, link.read
        if machine.has_gpu:
            to_host, to_gpu = link.write_alone, link.read_alone
        names = ", ".join(str(folder) for folder in folders)
        amount = format_bytes(total_bytes)
        return {
            "ssd": {
                "read_bytes_per_s": drives.read,
                "write_bytes_per_s": drives.write,
                "latency_ns": latency,
            },
            "host_link": {"to_host_bytes_per_s": to_host, "to_gpu_bytes_per_s": to_gpu},
            "source": {
                "ssd": f"measured: {names}, {ssd.io_path}, {amount}, {_all(drives)}",
                "host_link": f"measured: {machine.link}, {amount}, {_all(link)}",
            },
        }


class _Machine:
    """What is measured: the GPU's memory if there is one, else the CPU's."""

    def __init__(self, gpu: Device | None) -> None:
        self._gpu = gpu
        self.has_gpu = gpu is not None
        self.reach: Reach = HostReach() if gpu is None else gpu.reach
        self.link = "host memory copy, no GPU" if gpu is None else "pinned host memory"

    def memory(self, nbytes: int) -> AbstractContextManager[int]:
        return aligned_memory(nbytes) if self._gpu is None else self._gpu.lend_memory(nbytes)

    def movers(self, stores: Mapping[str, Store]) -> Mapping[str, Mover]:
        if self._gpu is None:
            return dict.fromkeys(stores, TransferEngine())
        return self._gpu.movers(stores, timed=True)

    def finish(self, transfers: Sequence[Transfer]) -> None:
        """Block until all are over, on the device too."""
        for transfer in transfers:
            transfer.wait()
        moment = None if self._gpu is None else self._gpu.now()
        if moment is not None:
            moment.wait()

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu.close()


def _gpu() -> Device | None:
    """Return the GPU if torch is here and has one that a run could use."""
    if find_spec("torch") is None:
        return None
    from teraio.profiler.storages import tracked_device

    if tracked_device().type != "cuda":
        return None
    from teraio.executor.cuda import CudaDevice

    return CudaDevice()


class _Timed(Transfer, Protocol):
    """A transfer that knows when it was asked for and when it ended, in the host's ns."""

    nbytes: int
    queued_ns: int
    ended_ns: int


def _all(rates: Rates) -> str:
    alone, both = (
        f"read {format_rate(read)}, write {format_rate(write)}"
        for read, write in ((rates.read_alone, rates.write_alone), (rates.read, rates.write))
    )
    return f"alone: {alone}; both directions at once: {both}"


@dataclass(frozen=True)
class _Path:
    """One store, and the memory at `address` that moves there and back."""

    machine: _Machine
    mover: Mover
    store: Store
    address: int

    def latency_ns(self) -> int:
        """Return the median time of one small read, from its request to its end."""
        extent = self.store.allocate(BLOCK_BYTES)
        write = self.mover.write(self.store, extent, self.address, BLOCK_BYTES, _LABEL)
        self.machine.finish([write])
        times = []
        for _ in range(LATENCY_READS):
            began_ns = perf_counter_ns()
            read = self.mover.read(
                self.store, extent, self.address, BLOCK_BYTES, _LABEL, urgent=True
            )
            self.machine.finish([read])
            times.append(perf_counter_ns() - began_ns)
        return round(statistics.median(times))

    def rates(self, nbytes: int) -> Rates:
        """Return the medians over a few rounds of `nbytes` each way."""
        moves = [_Moves(self, self.address + half * nbytes, nbytes) for half in (0, 1)]
        there, back = moves
        for half in moves:  # a drive's first write to new blocks is slower than any later one
            self._rate(half.write())
        rounds = [self._one_round(there, back) for _ in range(ROUNDS)]
        return Rates(*(round(statistics.median(column)) for column in zip(*rounds, strict=True)))

    def _one_round(self, there: _Moves, back: _Moves) -> tuple[float, float, float, float]:
        """Return bytes per second: write alone, read alone, write and read at once."""
        write_alone = self._rate(there.write())
        read_alone = self._rate(back.read())
        writes, reads = there.write(), back.read()
        return write_alone, read_alone, self._rate(writes), self._rate(reads)

    def _rate(self, transfers: Sequence[_Timed]) -> float:
        """Wait for all and return their bytes per second."""
        self.machine.finish(transfers)
        nbytes = sum(transfer.nbytes for transfer in transfers)
        end_ns = max(transfer.ended_ns for transfer in transfers)
        return nbytes * 1e9 / (end_ns - transfers[0].queued_ns)


@dataclass
class _Moves:
    """Transfers of `nbytes` at `address`, one piece each, to extents of their own and back."""

    path: _Path
    address: int
    nbytes: int

    def __post_init__(self) -> None:
        self._places: list[tuple[int, Extent]] = []
        for start in range(0, self.nbytes, PIECE_BYTES):
            size = min(PIECE_BYTES, self.nbytes - start)
            self._places.append((self.address + start, self.path.store.allocate(size)))

    def write(self) -> list[_Timed]:
        return self._each(self.path.mover.write)

    def read(self) -> list[_Timed]:
        return self._each(self.path.mover.read)

    def _each(self, move: Callable[..., Any]) -> list[_Timed]:
        store = self.path.store
        return [move(store, e, address, e.nbytes, _LABEL) for address, e in self._places]
