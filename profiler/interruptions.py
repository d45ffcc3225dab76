"""User code that could run in the middle of teraio's own: finalisers and signal handlers.

Python runs signal handlers, and the cyclic garbage collector runs `__del__` methods, between any
two bytecodes. Either may call operators, or raise, while a storage is between two states; and a
dispatch mode is not in force while it handles an op, so that it would not see them. So handlers
wait until an op is seen through and then run with the mode in force, and the collector runs at
the end of each step.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

Handler = Callable[[int, FrameType | None], Any]

FULL_EVERY: Final = 16
"""Steps between collections of the oldest generation, which takes some tenths of a second."""

OVERDUE: Final = 200_000
"""New objects after which a collection waits for the end of a step no longer: about 300 times
what the collector itself waits for."""


class Interruptions:
    """Holds off signal handlers and collections. Used under the stream's lock.

    A context manager; it may be entered again inside itself. `depth` says how often it is
    entered: the op stream counts it for each op itself, which takes half the time, and calls
    `let_in` where signals are `waiting`.
    """

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode
        self.depth = 0
        self.waiting: list[tuple[Handler, int, FrameType | None]] = []
        self._collects = False
        self._steps = 0

    def __enter__(self) -> None:
        """Hold handlers off."""
        self.depth += 1

    def __exit__(self, *exc: object) -> None:
        """Run the handlers of the signals that came meanwhile, on the main thread only."""
        self.depth -= 1
        if self.waiting:
            self.let_in()

    def collect(self) -> None:
        """Collect garbage, where the collector would have done so by itself."""
        if self._collects:
            self._steps += 1
            gc.collect(2 if self._steps % FULL_EVERY == 0 else 1)

    def collect_if_overdue(self) -> None:
        """Collect garbage in mid-step in a program that makes very much of it."""
        if self._collects and gc.get_count()[0] > OVERDUE:
            gc.collect(1)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hold off the collector, and the handlers that are there or are set, until the exit."""
        self._collects = gc.isenabled()
        gc.disable()
        try:
            with self._handlers_held_off():
                yield
        finally:
            if self._collects:
                gc.enable()
            self._collects = False

    @contextmanager
    def _handlers_held_off(self) -> Iterator[None]:
        if not _on_main_thread():
            yield
            return
        module: Any = signal
        original_signal, original_get = module.signal, module.getsignal
        handlers: dict[int, Handler] = {}

        def set_handler(number: int, handler: Any) -> Any:
            before = get_handler(number)
            handlers.pop(number, None)
            if callable(handler):
                handlers[number] = handler
                original_signal(number, self._deferring(handler))
            else:
                original_signal(number, handler)
            return before

        def get_handler(number: int) -> Any:
            return handlers.get(number) or original_get(number)

        for number in signal.valid_signals():
            if callable(original_get(number)):
                set_handler(number, original_get(number))
        module.signal, module.getsignal = set_handler, get_handler
        try:
            yield
        finally:
            module.signal, module.getsignal = original_signal, original_get
            for held, handler in handlers.items():
                original_signal(held, handler)
            self.let_in()

    def _deferring(self, handler: Handler) -> Handler:
        def deferring(number: int, frame: FrameType | None) -> Any:
            if self.depth or not self._in_force():
                self.waiting.append((handler, number, frame))
                return None
            return handler(number, frame)

        return deferring

    def let_in(self) -> None:
        """Run the handlers that wait, on the main thread and outside of all entries only."""
        while self.waiting and self.depth == 0 and _on_main_thread():
            handler, number, frame = self.waiting.pop(0)
            if self._in_force():
                handler(number, frame)
            else:
                with self._mode:
                    handler(number, frame)

    def _in_force(self) -> bool:
        return any(mode is self._mode for mode in _get_current_dispatch_mode_stack())


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
