"""Processes that the program forks: they find every tensor where it was.

A forked process has none of the threads that move bytes, and the files it shares with its parent
change under it. So everything is on the device when the process is forked.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_preparing: weakref.WeakSet[_Guard] = weakref.WeakSet()


class _Guard:
    def __init__(self, prepare: Callable[[], None]) -> None:
        self.prepare = prepare


@contextmanager
def before_forks(prepare: Callable[[], None]) -> Iterator[None]:
    """Have `prepare` called before each fork of this process until the exit."""
    guard = _Guard(prepare)
    _preparing.add(guard)
    try:
        yield
    finally:
        _preparing.discard(guard)


def _prepare() -> None:
    for guard in list(_preparing):
        guard.prepare()


os.register_at_fork(before=_prepare)
