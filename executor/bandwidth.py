"""What a run will get from its SSD folders and from host memory, measured through the store and
the engine that a run uses.

The rates are those of as many bytes each way, started at once: a run reads what it wrote, and its
optimizer reads the next states while the last ones are written, so a plan with the rates of one
direction alone would promise too much on a drive whose directions share its bandwidth. `source`
names those rates as well.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from teraio.executor.engine import Transfer, TransferEngine, TransferLabel
from teraio.executor.stores.base import PIECE_BYTES, Extent, Store
from teraio.executor.stores.host import HostStore
from teraio.executor.stores.memory import aligned_memory
from teraio.executor.stores.posix import PosixStore
from teraio.planner.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
    folders: Sequence[Path], *, total_bytes: int = TOTAL_BYTES
) -> dict[str, dict[str, int | str]]:
    """Return the JSON object of a hardware file, from moving `total_bytes` each way and round.

    Takes twice `total_bytes` in the folders and four times in memory. On a machine without a
    GPU the host link is a copy in host memory. Raises StorageError if a folder cannot be used.
    """
    with ExitStack() as stack:
        ssd = PosixStore(folders, 2 * total_bytes + BLOCK_BYTES)
        stack.callback(ssd.close)
        host = HostStore(2 * total_bytes)
        stack.callback(host.close)
        address = stack.enter_context(aligned_memory(2 * total_bytes + MISALIGNMENT)) + MISALIGNMENT
        engine = TransferEngine()
        stack.callback(engine.close)
        latency = _latency_ns(engine, ssd, address)
        drives = _rates(engine, ssd, address, total_bytes)
        link = _rates(engine, host, address, total_bytes)
        names = ", ".join(str(folder) for folder in folders)
        amount = format_bytes(total_bytes)
        return {
            "ssd": {
                "read_bytes_per_s": drives.read,
                "write_bytes_per_s": drives.write,
                "latency_ns": latency,
            },
            "host_link": {"to_host_bytes_per_s": link.write, "to_gpu_bytes_per_s": link.read},
            "source": {
                "ssd": f"measured: {names}, {ssd.io_path}, {amount}, {_alone(drives)}",
                "host_link": f"measured: host memory copy, no GPU, {amount}, {_alone(link)}",
            },
        }


def _alone(rates: Rates) -> str:
    read, write = format_rate(rates.read_alone), format_rate(rates.write_alone)
    return f"both directions at once (alone: read {read}, write {write})"


def _latency_ns(engine: TransferEngine, store: Store, address: int) -> int:
    """Return the median time of one small read, from its request to its end."""
    extent = store.allocate(BLOCK_BYTES)
    engine.write(store, extent, address, BLOCK_BYTES, _LABEL).wait()
    times = []
    for _ in range(LATENCY_READS):
        read = engine.read(store, extent, address, BLOCK_BYTES, _LABEL, urgent=True)
        read.wait()
        times.append(read.ended_ns - read.queued_ns)
    return round(statistics.median(times))


def _rates(engine: TransferEngine, store: Store, address: int, nbytes: int) -> Rates:
    moves = [_Moves(engine, store, address + half * nbytes, nbytes) for half in (0, 1)]
    there, back = moves
    for half in moves:  # a drive's first write to new blocks is slower than any later one
        _rate(half.write())
    rounds = [_one_round(there, back) for _ in range(ROUNDS)]
    return Rates(*(round(statistics.median(column)) for column in zip(*rounds, strict=True)))


def _one_round(there: _Moves, back: _Moves) -> tuple[float, float, float, float]:
    """Return bytes per second: write alone, read alone, write and read at once."""
    write_alone = _rate(there.write())
    read_alone = _rate(back.read())
    writes, reads = there.write(), back.read()
    return write_alone, read_alone, _rate(writes), _rate(reads)


@dataclass
class _Moves:
    """Transfers of `nbytes` at `address`, one piece each, to extents of their own and back."""

    engine: TransferEngine
    store: Store
    address: int
    nbytes: int

    def __post_init__(self) -> None:
        self._places: list[tuple[int, Extent]] = []
        for start in range(0, self.nbytes, PIECE_BYTES):
            size = min(PIECE_BYTES, self.nbytes - start)
            self._places.append((self.address + start, self.store.allocate(size)))

    def write(self) -> list[Transfer]:
        move = self.engine.write
        return [move(self.store, e, address, e.nbytes, _LABEL) for address, e in self._places]

    def read(self) -> list[Transfer]:
        move = self.engine.read
        return [move(self.store, e, address, e.nbytes, _LABEL) for address, e in self._places]


def _rate(transfers: list[Transfer]) -> float:
    """Wait for all and return their bytes per second."""
    for transfer in transfers:
        transfer.wait()
    nbytes = sum(transfer.nbytes for transfer in transfers)
    end_ns = max(transfer.ended_ns for transfer in transfers)
    return nbytes * 1e9 / (end_ns - transfers[0].queued_ns)
