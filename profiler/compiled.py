"""Compiled code as ops of the op stream: one op for each region that inductor compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def compiled_regions() -> Iterator[None]:
    """Have what `torch.compile` compiles until the exit show itself to dispatch modes.

    Otherwise its kernels would reach memory that no op announces. The setting is made at the
    first call, since importing inductor takes seconds that few programs need.
    """
    original: Callable[..., Any] = torch.compile

    @functools.wraps(original)
    def visible(*args: Any, **kwargs: Any) -> Any:
        import torch._inductor.config as inductor

        inductor.wrap_inductor_compiled_regions = True
        return original(*args, **kwargs)

    torch.compile = visible
    try:
        yield
    finally:
        torch.compile = original
