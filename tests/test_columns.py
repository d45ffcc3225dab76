"""From columns to a trace."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from teraio.planner.step import Use, load_step
from teraio.profiler.importers.columns import (
    READ,
    READWRITE,
    WRITE,
    Accesses,
    Ops,
    Tensors,
    cumulative_ns,
    imported_info,
    one_step,
)
from teraio.profiler.trace import SCHEMA, Trace, read_trace, write_trace


@given(st.lists(st.integers(0, 10**12), max_size=20), st.fractions(0, 10, max_denominator=999))
def test_starts_are_within_half_a_ns(units: list[int], ns_per_unit: Fraction) -> None:
    starts = cumulative_ns(units, ns_per_unit)
    assert len(starts) == len(units) + 1
    assert starts == sorted(starts)
    for done, start in enumerate(starts):
        assert abs(sum(units[:done]) * ns_per_unit - start) <= Fraction(1, 2)


def _trace(op: list[int], tensor: list[int], access: list[int]) -> Trace:
    ops = Ops(["a", "b", "a"], ["forward", "other", "other"], ["", "m", ""], np.array([0, 5, 5, 9]))
    tensors = Tensors(
        ids=np.array([7, 3]),
        nbytes=np.array([512, 1]),
        kinds=["other", "activation"],
        alloc_op=np.array([-1, 1]),
        free_op=np.array([-1, 2]),
    )
    accesses = Accesses(np.array(op), np.array(tensor), np.array(access))
    return one_step(ops, tensors, accesses, imported_info("a device", 1 << 30))


def test_columns_become_a_step_and_a_file() -> None:
    trace = _trace([2, 1, 1], [1, 1, 0], [READ, WRITE, READWRITE])
    assert trace.table.schema.equals(SCHEMA)
    sink = io.BytesIO()
    write_trace(trace, sink)
    sink.seek(0)
    again = read_trace(sink)
    assert again.info == trace.info
    step = load_step(again)
    assert [(op.name, op.phase, op.module, op.start_ns, op.duration_ns) for op in step.ops] == [
        ("a", "forward", "", 0, 5), ("b", "other", "m", 5, 0), ("a", "other", "", 5, 4),
    ]  # fmt: skip
    small, large = step.tensors
    assert (small.id, small.nbytes, small.kind, small.slot) == (3, 1, "activation", 0)
    assert (small.alloc_op, small.free_op) == (1, 2)
    assert small.uses == (Use(1, False, True), Use(2, True, False))
    assert (large.id, large.persistent, large.slot) == (7, True, 1)
    assert large.uses == (Use(1, True, True),)


def test_ops_without_tensors_and_tensors_without_ops_have_a_row() -> None:
    bare = _trace([1, 2], [1, 1], [WRITE, READ]).table.to_pylist()
    rows = [(row["op"], row["tensor"], row["access"], row["nbytes"]) for row in bare]
    assert rows == [(0, 7, "none", 512), (1, 3, "write", 1), (2, 3, "read", 1)]
    none = _trace([1, 1], [0, 1], [READ, WRITE]).table.to_pylist()
    rows = [(row["op"], row["tensor"], row["access"], row["nbytes"]) for row in none]
    assert rows == [(0, None, None, 0), (1, 7, "read", 512), (1, 3, "write", 1), (2, None, None, 0)]
    assert {row["kind"] for row in none if row["tensor"] is None} == {"other"}
