"""What a command is doing, for people who wait."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on stderr in the place of the one before.

    Only on a terminal; the line is gone after the block.
    """
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    try:
        yield lambda text: _show(text)
    finally:
        _show("")


def _show(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
