"""From the ops, tensors and accesses of another tool to a trace of one step, in whole columns."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from teraio.profiler.trace import ACCESSES, SCHEMA, Trace, TraceInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

READ: Final = ACCESSES.index("read")
WRITE: Final = ACCESSES.index("write")
READWRITE: Final = ACCESSES.index("readwrite")
_NONE: Final = ACCESSES.index("none")


@dataclass(frozen=True)
class Ops:
    """The ops of the step, one entry each; `start_ns` has the end of the last op as well."""

    names: Sequence[str]
    phases: Sequence[str]
    modules: Sequence[str]
    start_ns: NDArray[np.int64]


@dataclass(frozen=True)
class Tensors:
    """The tensors of the step, one entry each; `alloc_op` and `free_op` are -1 where the trace
    has none: the tensor was there before the step, or outlives it.
    """

    ids: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    kinds: Sequence[str]
    alloc_op: NDArray[np.int64]
    free_op: NDArray[np.int64]


@dataclass(frozen=True)
class Accesses:
    """Which op uses which tensor (an index into `Tensors`), and how: READ, WRITE or READWRITE.

    The accesses of an op keep the order they have here.
    """

    op: NDArray[np.int64]
    tensor: NDArray[np.int64]
    access: NDArray[np.int64]


def cumulative_ns(units: Sequence[int], ns_per_unit: Fraction) -> list[int]:
    """Return when each op starts and the last one ends, of the times the ops take one by one.

    Sums are rounded, not times, so that each start is within half a ns of the exact one.
    """
    numerator, denominator = ns_per_unit.numerator, ns_per_unit.denominator
    total, starts = 0, [0]
    for unit in units:
        total += unit
        starts.append((2 * total * numerator + denominator) // (2 * denominator))
    return starts


def one_step(ops: Ops, tensors: Tensors, accesses: Accesses, info: TraceInfo) -> Trace:
    """Return a trace of one step without gaps between its ops.

    A tensor that no op uses is alive in the step all the same; an op that uses no tensor has
    the row that such an op has in any trace.
    """
    n_ops, n_tensors = len(ops.names), len(tensors.ids)
    bare = np.setdiff1d(np.arange(n_ops), accesses.op)
    idle = np.setdiff1d(np.arange(n_tensors), accesses.tensor)
    if len(idle):
        bare = bare[bare != 0]
    op = np.concatenate([accesses.op, np.zeros_like(idle), bare])
    order = np.argsort(op, kind="stable")
    op = op[order]
    tensor = np.concatenate([accesses.tensor, idle, np.full(len(bare), -1)])[order]
    access = np.concatenate([accesses.access, np.full(len(idle) + len(bare), _NONE)])[order]
    start, duration = ops.start_ns[:-1], np.diff(ops.start_ns)
    has_none = tensor < 0
    columns = {
        "step": np.zeros(len(op), dtype=np.int32),
        "op": op.astype(np.int32),
        "op_name": _words(ops.names, op),
        "phase": _words(ops.phases, op),
        "module": _words(ops.modules, op),
        "start_ns": start[op],
        "duration_ns": duration[op],
        "workspace_bytes": np.zeros(len(op), dtype=np.int64),
        "tensor": pa.array(tensors.ids[tensor], mask=has_none),
        "access": _dictionary(access, ACCESSES, has_none),
        "nbytes": np.where(has_none, 0, tensors.nbytes[tensor]),
        "kind": _words([*tensors.kinds, "other"], tensor),
        "name": _dictionary(np.zeros(len(op), dtype=np.int64), ("",), None),
        "alloc_op": _optional(tensors.alloc_op[tensor], has_none),
        "free_op": _optional(tensors.free_op[tensor], has_none),
    }
    return Trace(pa.table(columns, schema=SCHEMA), info)


def imported_info(device: str, device_memory_bytes: int) -> TraceInfo:
    """Return what a trace says of itself if it was imported: no program, no fingerprint."""
    return TraceInfo(
        device=device,
        device_memory_bytes=device_memory_bytes,
        torch_version="",
        allocator="",
        rank=0,
        world_size=1,
        steps=1,
        command=(),
        fingerprint="",
    )


def _words(words: Sequence[str], indices: NDArray[np.int64]) -> Any:
    """Return the column that has the word at each index; -1 is the last one."""
    known = list(dict.fromkeys(words))
    number = {word: index for index, word in enumerate(known)}
    codes = np.array([number[word] for word in words], dtype=np.int64)
    return _dictionary(codes[indices], known, None)


def _dictionary(
    codes: NDArray[np.int64], words: Sequence[str], mask: NDArray[np.bool_] | None
) -> Any:
    indices = pa.array(codes.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(words), pa.string()))


def _optional(values: NDArray[np.int64], has_none: NDArray[np.bool_]) -> Any:
    return pa.array(values.astype(np.int32), mask=has_none | (values < 0))
