"""The collector of cyclic garbage, kept out of work that makes many objects and no cycles."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_collections() -> Iterator[None]:
    """Hold the collector off: it would look at all objects again each time there are more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
