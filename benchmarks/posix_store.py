"""The POSIX store against `dd` (and `fio` if there is one) with direct I/O on one file system.

    python benchmarks/posix_store.py DIR            # compare, write benchmarks/results/
    python benchmarks/posix_store.py DIR --sweep    # piece sizes and workers, prints only

All contenders move the same number of bytes to and from preallocated files that were written
once before, taking turns in an order that changes from round to round; each figure is the median
of the rounds and each ratio the median of the ratios within a round, so that a disturbance hits
both sides. `dd` writes zeros from one aligned buffer. The store is measured twice: from
page-aligned memory, and from memory as torch aligns CPU tensors, which goes through bounce
buffers. All stores share one memory, as its pages alone make a difference in a virtual machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from teraio.executor.bandwidth import MISALIGNMENT
from teraio.executor.engine import WORKERS, QueuedTransfer, TransferEngine
from teraio.executor.stores.base import PIECE_BYTES
from teraio.executor.stores.memory import aligned_memory
from teraio.executor.stores.posix import PosixStore
from teraio.executor.transfer import TransferLabel
from teraio.planner.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

RESULT: Final = Path(__file__).parent / "results" / "posix_store.json"
TENSOR_BYTES: Final = 32 << 20
SHIFTS: Final = {"aligned": 0, "torch": MISALIGNMENT}
DD_BLOCK_BYTES: Final = 8 << 20
LABEL: Final = TransferLabel(tensor=0, name="benchmark", step=0, op=0)

Contender = dict[str, "Callable[[], float]"]
"""By direction, what moves all bytes once and returns the bytes per second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder on the drive to measure")
    parser.add_argument("--mib", type=int, default=512, help="MiB that each contender moves")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=RESULT, help="where figures go")
    parser.add_argument("--sweep", action="store_true", help="try piece sizes and workers")
    args = parser.parse_args()
    nbytes = args.mib << 20
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="bench-") as scratch:
        if args.sweep:
            sweep(Path(scratch), nbytes, args.rounds)
        else:
            compare(Path(scratch), nbytes, args.rounds, args.output)


def compare(scratch: Path, nbytes: int, rounds: int, output: Path) -> None:
    with ExitStack() as stack:
        contenders = {"dd": dd(scratch / "dd", nbytes)}
        if shutil.which("fio"):
            contenders["fio"] = fio(scratch / "fio", nbytes)
        memory = stack.enter_context(aligned_memory(nbytes + MISALIGNMENT))
        for name, shift in SHIFTS.items():
            contenders[f"store, {name}"] = store(scratch, nbytes, memory + shift, stack)
        rates = measure(contenders, rounds)
    results = {
        way: {name: summary(rates[name, way], rates["dd", way]) for name in contenders}
        for way in ("write", "read")
    }
    for direction, by_name in results.items():
        for name, row in by_name.items():
            print(f"{direction:6}{name:16}{row['gb_per_s']:7.2f} GB/s {row['of_dd']:7.1%} of dd")
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(scratch),
        "bytes": nbytes,
        "rounds": rounds,
        "piece_bytes": PIECE_BYTES,
        "results": results,
    }
    output.write_text(json.dumps(record, indent=2) + "\n")
    print(f"\n{format_bytes(nbytes)} each, {rounds} rounds; written to {output}")


def sweep(scratch: Path, nbytes: int, rounds: int) -> None:
    with ExitStack() as stack:
        memory = stack.enter_context(aligned_memory(nbytes + MISALIGNMENT))
        contenders = {
            f"{piece_mib:3} {workers:8} {name:>8}": store(
                scratch, nbytes, memory + shift, stack, piece_mib << 20, workers
            )
            for name, shift in SHIFTS.items()
            for piece_mib in (1, 2, 4, 8, 16)
            for workers in (1, 2, 4)
        }
        rates = measure(contenders, rounds)
    print("MiB  workers   memory  write   read  GB/s")
    for name in contenders:
        write, read = (statistics.median(rates[name, way]) / 1e9 for way in ("write", "read"))
        print(f"{name} {write:6.2f} {read:6.2f}")


def measure(contenders: dict[str, Contender], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Let the contenders take turns; a first round that is not counted writes every block."""
    rates: dict[tuple[str, str], list[float]] = {}
    turns = [(name, way) for way in ("write", "read") for name in contenders]
    for number in range(rounds + 1):
        for name, way in turns:
            rate = contenders[name][way]()
            if number:
                rates.setdefault((name, way), []).append(rate)
        random.Random(number).shuffle(turns)
    return rates


def summary(rates: list[float], dd_rates: list[float]) -> dict[str, float]:
    ratios = [rate / dd_rate for rate, dd_rate in zip(rates, dd_rates, strict=True)]
    return {
        "gb_per_s": round(statistics.median(rates) / 1e9, 3),
        "of_dd": round(statistics.median(ratios), 3),
    }


def store(
    scratch: Path,
    nbytes: int,
    memory: int,
    stack: ExitStack,
    piece_bytes: int = PIECE_BYTES,
    workers: int = WORKERS,
) -> Contender:
    """Return the store as a contender that moves the `nbytes` bytes at the address `memory`."""
    posix = PosixStore([scratch], nbytes, piece_bytes=piece_bytes)
    stack.callback(posix.close)
    engine = TransferEngine(readers=workers, writers=workers)
    stack.callback(engine.close)
    if posix.io_path != "posix-direct":
        msg = f"no direct I/O in {scratch}: nothing to compare"
        raise SystemExit(msg)
    sizes = [min(TENSOR_BYTES, nbytes - at) for at in range(0, nbytes, TENSOR_BYTES)]
    places = [(memory + at * TENSOR_BYTES, posix.allocate(size)) for at, size in enumerate(sizes)]

    def run(move: Callable[..., QueuedTransfer]) -> float:
        began = time.perf_counter()
        transfers = [
            move(posix, extent, address, extent.nbytes, LABEL) for address, extent in places
        ]
        for transfer in transfers:
            transfer.wait()
        return nbytes / (time.perf_counter() - began)

    return {"write": lambda: run(engine.write), "read": lambda: run(engine.read)}


def dd(path: Path, nbytes: int) -> Contender:
    preallocate(path, nbytes)
    shape = [f"bs={DD_BLOCK_BYTES}", f"count={nbytes // DD_BLOCK_BYTES}"]
    write = ["dd", "if=/dev/zero", f"of={path}", *shape, "oflag=direct", "conv=notrunc"]
    read = ["dd", f"if={path}", "of=/dev/null", *shape, "iflag=direct"]
    return {"write": lambda: dd_rate(write), "read": lambda: dd_rate(read)}


def dd_rate(command: list[str]) -> float:
    said = subprocess.run(
        command, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, check=True
    ).stderr
    match = re.search(r"(\d+) bytes .* copied, ([\d.e-]+) s", said)
    if match is None:
        msg = f"cannot read what dd says: {said}"
        raise SystemExit(msg)
    return int(match[1]) / float(match[2])


def fio(path: Path, nbytes: int) -> Contender:
    preallocate(path, nbytes)
    return {
        "write": lambda: fio_rate(path, nbytes, "write"),
        "read": lambda: fio_rate(path, nbytes, "read"),
    }


def fio_rate(path: Path, nbytes: int, direction: str) -> float:
    command = [
        "fio", "--name=bench", f"--filename={path}", f"--size={nbytes}", f"--rw={direction}",
        f"--bs={PIECE_BYTES}", "--direct=1", "--ioengine=libaio", "--iodepth=4",
        "--overwrite=1", "--output-format=json",
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(said)["jobs"][0][direction]["bw_bytes"])


def preallocate(path: Path, nbytes: int) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)


def machine(scratch: Path) -> dict[str, str | float]:
    mounted = subprocess.run(
        ["stat", "-f", "-c", "%T", str(scratch)], capture_output=True, text=True, check=True
    )
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count() or 0,
        "load_average": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": mounted.stdout.strip(),
    }


if __name__ == "__main__":
    main()
