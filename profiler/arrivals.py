"""Tensors from other processes, such as the workers of a data loader.

When one arrives is chance, so the ops that rebuild it are no part of the op sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.multiprocessing import reductions
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def arrivals_unseen() -> Iterator[None]:
    """Hide from dispatch modes, until the exit, the ops that rebuild tensors sent here."""
    rebuild: Callable[..., Any] = reductions.rebuild_tensor

    @functools.wraps(rebuild)  # it is pickled by name
    def unseen(*args: Any) -> Any:
        with _disable_current_modes():
            return rebuild(*args)

    reductions.rebuild_tensor = unseen
    try:
        yield
    finally:
        reductions.rebuild_tensor = rebuild
