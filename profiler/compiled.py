"""Compiled code as ops of the op stream: one op for each region that inductor compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def compiled_regions(before_first: Callable[[], object] = object) -> Iterator[None]:
    """Have what `torch.compile` compiles until the exit show itself to dispatch modes.

    Otherwise its kernels would reach memory that no op announces. The setting is made at the
    first call, since importing inductor takes seconds that few programs need; `before_first` is
    called then too.
    """
    original: Callable[..., Any] = torch.compile
    met = False

    @functools.wraps(original)
    def visible(*args: Any, **kwargs: Any) -> Any:
        nonlocal met
        import torch._inductor.config as inductor

        if not met:
            met = True
            before_first()
        inductor.wrap_inductor_compiled_regions = True
        return original(*args, **kwargs)

    torch.compile = visible
    try:
        yield
    finally:
        torch.compile = original
