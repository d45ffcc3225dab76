"""Raw memory for tests: a buffer with guard bytes around it, and a count of what leaks."""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from teraio.executor.stores.memory import address_of

if TYPE_CHECKING:
    from collections.abc import Iterator

GUARD = 4096
GUARD_BYTE = 0xA5


class Buffer:
    """`nbytes` bytes that start `shift` bytes after a page's start, between guard bytes."""

    def __init__(self, nbytes: int, *, shift: int = 0, content: bytes | None = None) -> None:
        self._memory = mmap.mmap(-1, GUARD + shift + nbytes + GUARD)
        self._memory[:] = bytes([GUARD_BYTE]) * len(self._memory)
        self._start = GUARD + shift
        self.nbytes = nbytes
        self.address = address_of(self._memory) + self._start
        self.content = os.urandom(nbytes) if content is None else content

    @property
    def content(self) -> bytes:
        return self._memory[self._start : self._start + self.nbytes]

    @content.setter
    def content(self, content: bytes) -> None:
        self._memory[self._start : self._start + self.nbytes] = content

    @property
    def guards_intact(self) -> bool:
        around = self._memory[: self._start] + self._memory[self._start + self.nbytes :]
        return around == bytes([GUARD_BYTE]) * len(around)


@contextmanager
def nothing_leaks() -> Iterator[None]:
    """Fail if a `with` block leaves a descriptor or a thread behind."""
    before = _descriptors(), set(threading.enumerate())
    yield
    assert (_descriptors(), set(threading.enumerate())) == before


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the descriptor that lists the folder
            continue
    return found
