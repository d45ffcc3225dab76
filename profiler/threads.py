"""Ops in the program's other threads: not numbered, but what they touch is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from teraio.profiler.opstream import B, OpStream
from teraio.profiler.storages import storages_of, tensors_in
from teraio.profiler.touch import Hold


class BystanderMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode for one thread beside the program's own.

    The order of its ops is no part of the program's op sequence. Each runs under the stream's
    lock, so that its storages stay where they are while it does.
    """

    supports_higher_order_operators = True

    def __init__(self, stream: OpStream[B]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stream: OpStream[Any] = stream

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile as it would without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator once its storages are there."""
        kwargs = kwargs or {}
        if not self._stream.active:
            return func(*args, **kwargs)
        with self._stream.lock, self._stream.interruptions:
            for tensor in tensors_in([args, kwargs]):
                for storage in storages_of(tensor):
                    if self._stream.table.known(storage) is not None:
                        self._stream.touch(storage, Hold.STEP)
            return func(*args, **kwargs)


@contextmanager
def bystanders(stream: OpStream[B]) -> Iterator[None]:
    """Have every thread started until the exit run under a BystanderMode."""
    start = threading.Thread.start

    def watched_start(thread: threading.Thread) -> None:
        _watch(thread, stream)
        start(thread)

    threading.Thread.start = watched_start  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def _watch(thread: threading.Thread, stream: OpStream[B]) -> None:
    run: Callable[[], None] = thread.run

    def watched_run() -> None:
        del thread.run  # with it the thread would keep itself alive, and what it holds
        with BystanderMode(stream):
            run()

    thread.run = watched_run  # type: ignore[method-assign]
