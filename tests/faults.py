"""`python faults.py FAULT run PLAN ... SCRIPT`: the command, on a drive that has a fault.

FAULT is a `Fault` as JSON. The system calls of this process alone are changed, before the command
begins, and only those that the engine's threads make: what is tried when a store is opened goes
well.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

CALLS = {"write": "pwritev", "read": "preadv"}
BLOCK = 4096
SLOW_S = 0.02
HITS = Path("hits")
"""One line for each call that the fault befell, with its number."""

_Call = Callable[[int, list[memoryview], int], int]


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `kind` is one of `KINDS` or an errno's name.

    It befalls the calls of direction `verb` from number `first` on, `times` of them; of these,
    where `rate` is less than 1, each with that chance.
    """

    kind: str
    verb: str
    first: int = 0
    times: int = 1 << 30
    rate: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class FaultyDrive:
    """A system call that does what a `Fault` says; `ssd` is the folder of the run."""

    def __init__(self, fault: Fault, ssd: Path) -> None:
        self.fault, self.ssd = fault, ssd
        self.count = 0
        self.real: _Call = getattr(os, CALLS[fault.verb])
        self._chance = random.Random(fault.seed)
        self._lock = threading.Lock()

    def __call__(self, fd: int, views: list[memoryview], offset: int) -> int:
        if not threading.current_thread().name.startswith("teraio-"):
            return self.real(fd, views, offset)
        with self._lock:
            number, self.count = self.count, self.count + 1
            hit = self._chance.random() < self.fault.rate
        fault = self.fault
        if not hit or not fault.first <= number < fault.first + fault.times:
            return self.real(fd, views, offset)
        with HITS.open("a") as file:
            file.write(f"{number}\n")
        if fault.kind in KINDS:
            return KINDS[fault.kind](self, fd, views[0], offset)
        code = getattr(errno, fault.kind)
        raise OSError(code, os.strerror(code))

    def short(self, fd: int, view: memoryview, offset: int) -> int:
        """Move about half of it, as far as that is whole blocks."""
        half = max(len(view) // 2 // BLOCK * BLOCK, min(BLOCK, len(view)))
        return self.real(fd, [view[:half]], offset)

    def nothing(self, fd: int, view: memoryview, offset: int) -> int:
        return 0

    def slow(self, fd: int, view: memoryview, offset: int) -> int:
        time.sleep(SLOW_S)
        return self.real(fd, [view], offset)

    def stuck(self, fd: int, view: memoryview, offset: int) -> int:
        threading.Event().wait()
        raise AssertionError

    def corrupted(self, fd: int, view: memoryview, offset: int) -> int:
        """Flip a bit on the way: one of the first number, as a block may end in nothing."""
        at = 2
        if self.fault.verb == "read":
            moved = self.real(fd, [view], offset)
            view[at] ^= 0x40
            return moved
        with mmap.mmap(-1, len(view)) as copy:
            copy[:] = view
            copy[at] ^= 0x40
            return self.real(fd, [memoryview(copy)], offset)

    def removed(self, fd: int, view: memoryview, offset: int) -> int:
        """Someone removes all that is in the folder."""
        for path in self.ssd.iterdir():
            shutil.rmtree(path, ignore_errors=True)
        return self.real(fd, [view], offset)

    def locked(self, fd: int, view: memoryview, offset: int) -> int:
        """Someone takes away the rights to the folder."""
        self.ssd.chmod(0)
        return self.real(fd, [view], offset)


KINDS: dict[str, Callable[[FaultyDrive, int, memoryview, int], int]] = {
    "short": FaultyDrive.short,
    "nothing": FaultyDrive.nothing,
    "slow": FaultyDrive.slow,
    "stuck": FaultyDrive.stuck,
    "corrupted": FaultyDrive.corrupted,
    "removed": FaultyDrive.removed,
    "locked": FaultyDrive.locked,
}


if __name__ == "__main__":
    from teraio_cli.main import main

    injected, words = Fault(**json.loads(sys.argv[1])), sys.argv[2:]
    drive = FaultyDrive(injected, Path(words[words.index("--ssd") + 1]))
    setattr(os, CALLS[injected.verb], drive)
    sys.argv = ["teraio", *words]
    main()
