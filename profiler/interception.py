"""All the ways in which a running program is watched, put on and taken off together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from teraio.profiler.arrivals import arrivals_unseen
from teraio.profiler.compiled import compiled_regions
from teraio.profiler.opstream import B, OpStream
from teraio.profiler.optimizers import OptimizerWatch
from teraio.profiler.threads import bystanders
from teraio.profiler.touch import touch_points


@contextmanager
def intercepting(
    stream: OpStream[B],
    optimizers: OptimizerWatch,
    before_first_compile: Callable[[], object] = object,
) -> Iterator[None]:
    """Have an op stream see the program until the exit.

    The recorder and the executor use the same, so that both see the same ops.
    """
    with ExitStack() as stack:
        for part in (
            optimizers.installed(),
            touch_points(stream),
            bystanders(stream),
            stream.interruptions.installed(),
            arrivals_unseen(),
            compiled_regions(before_first_compile),
            stream,
        ):
            stack.enter_context(part)
        yield
