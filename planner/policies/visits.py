"""Visits: the runs of ops that work on one module, which runtimes prefetch by.

A recorded backward pass and optimizer step do not say which module they work on, but the
parameters that their ops use do.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teraio.planner.step import Step


class Visits:
    """The visits of a step that repeats; positions count on into the next step."""

    def __init__(self, step: Step) -> None:
        self._n_ops = len(step.ops)
        self._starts = _starts(step)

    def number(self, position: int) -> int:
        """Return the number of the visit that the op at `position` is in, from any origin."""
        turn, op = divmod(position, self._n_ops)
        return bisect_right(self._starts, op) + turn * len(self._starts)

    def ahead_of(self, position: int) -> int:
        """Return the op after whose end the visit before the one at `position` begins.

        What is fetched then has that visit's time to arrive.
        """
        turn, index = divmod(self.number(position) - 2, len(self._starts))
        return self._starts[index] + turn * self._n_ops - 1


def _starts(step: Step) -> list[int]:
    """Return the first op of each visit.

    A visit begins where another module's parameters are used than before, or another phase
    begins. Without parameters each run of ops of one module is a visit, each op if no op has one.
    """
    places = _places(step)
    starts = []
    before = None
    for op, place in enumerate(places):
        key = (step.ops[op].phase, place)
        if place is not None and key != before:
            starts.append(op)
            before = key
    return starts or [0]


def _places(step: Step) -> list[str | int | None]:
    places: list[str | int | None] = [None] * len(step.ops)
    for tensor in step.tensors:
        if tensor.kind == "parameter" and tensor.name:
            for use in tensor.uses:
                places[use.op] = places[use.op] or tensor.name.rpartition(".")[0] or tensor.name
    if any(places):
        return places
    modules = [op.module for op in step.ops]
    return [*modules] if any(modules) else [*range(len(step.ops))]
