"""User code that could run in the middle of teraio's own: finalisers and signal handlers.

The cyclic garbage collector runs `__del__` methods, and Python runs signal handlers, between any
two bytecodes. Either may call operators, or raise, while a storage is between two states. Both
are held off while an op is seen through, and take place right after it.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class _HeldOff:
    """The state of being held off, entered for each op; may be entered again inside itself."""

    __slots__ = ("_collected", "_depth", "_owner")

    def __init__(self, owner: Interruptions) -> None:
        self._owner = owner
        self._depth = 0
        self._collected = False

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._collected = gc.isenabled()
            gc.disable()

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            if self._collected:
                gc.enable()
            if self._owner.waiting:
                self._owner.let_in()

    @property
    def on(self) -> bool:
        return self._depth > 0


class Interruptions:
    """Holds off the cyclic collector and the handlers of signals. Used under the stream's lock."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Handler, int, FrameType | None]] = []
        self._held = _HeldOff(self)

    def held_off(self) -> _HeldOff:
        """Return the context in which nothing interrupts."""
        return self._held

    def let_in(self) -> None:
        """Run the handlers of the signals that came meanwhile, on the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            return
        while self.waiting:
            handler, number, frame = self.waiting.pop(0)
            handler(number, frame)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hold off handlers that are there or are set until the exit."""
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

        if threading.current_thread() is not threading.main_thread():
            yield
            return
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

    def _deferring(self, handler: Handler) -> Handler:
        def deferring(number: int, frame: FrameType | None) -> Any:
            if self._held.on:
                self.waiting.append((handler, number, frame))
                return None
            return handler(number, frame)

        return deferring
