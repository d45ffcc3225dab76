"""The last complete step of a trace as plain data, and what follows from it alone.

All op indices count the ops of the step from 0; all sizes are bytes, all times ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from teraio.planner.garbage import no_collections
from teraio.profiler.errors import BadInputError
from teraio.profiler.trace import ACCESSES, GRANULE

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from teraio.profiler.trace import Trace


MOST: Final = 1 << 53
"""The largest time in ns and workspace in bytes taken from a trace: 104 days, 8 PiB. Sums of as
many as a step has stay within 64 bits."""

LARGEST: Final = 1 << 61
"""The largest size of a tensor in bytes that can still be rounded up within 64 bits."""


MOST_TOGETHER: Final = 7 << 60
"""The most bytes that all tensors may take together: with workspace still within 64 bits."""


_READS_WRITES: Final = {
    "read": (True, False),
    "write": (False, True),
    "readwrite": (True, True),
}


class Use(NamedTuple):
    """One op's access to a tensor."""

    op: int
    reads: bool
    writes: bool


class Op(NamedTuple):
    """One op of the step; `start_ns` counts from the step's start, without swapping.

    `workspace_bytes` is rounded up to 512 B, as every size in the accounting is.
    """

    name: str
    phase: str
    module: str
    start_ns: int
    duration_ns: int
    workspace_bytes: int

    @property
    def end_ns(self) -> int:
        """When the op ends, in ns from the step's start."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class StepTensor:
    """A storage that is alive during the step.

    `nbytes` are its bytes and `size` what they take on the device. `alloc_op` is None if it
    existed before the step, `free_op` None if it outlives it. `first_op` is the first op that
    uses it and `slot` its place among the storages of that op; both are -1 if nothing does.
    """

    id: int
    nbytes: int
    size: int
    kind: str
    name: str
    alloc_op: int | None
    free_op: int | None
    uses: tuple[Use, ...]
    first_op: int
    slot: int
    pinned: bool

    @property
    def persistent(self) -> bool:
        """True if the tensor lives from step to step."""
        return self.alloc_op is None and self.free_op is None


@dataclass(frozen=True)
class Step:
    """One steady training step, repeated without end: op 0 follows the last op."""

    ops: tuple[Op, ...]
    tensors: tuple[StepTensor, ...]

    @property
    def period_ns(self) -> int:
        """The length of the step with unlimited memory: the end of its last op."""
        return self.ops[-1].end_ns

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """When each op starts, in ns."""
        return np.array([op.start_ns for op in self.ops], dtype=np.int64)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """When each op ends, in ns."""
        return np.array([op.end_ns for op in self.ops], dtype=np.int64)

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """The ns from each op's start to the next one's; the last op's next is op 0."""
        return np.diff(self.starts, append=self.period_ns + self.starts[0])

    @cached_property
    def demand(self) -> NDArray[np.int64]:
        """The bytes each op needs with every tensor resident, workspace included."""
        n_ops = len(self.ops)
        change = np.zeros(n_ops + 1, dtype=np.int64)
        births = np.array([t.alloc_op or 0 for t in self.tensors], dtype=np.int64)
        deaths = np.array(
            [n_ops if t.free_op is None else t.free_op + 1 for t in self.tensors], dtype=np.int64
        )
        sizes = np.array([t.size for t in self.tensors], dtype=np.int64)
        np.add.at(change, births, sizes)
        np.subtract.at(change, deaths, sizes)
        workspace = np.array([op.workspace_bytes for op in self.ops], dtype=np.int64)
        needed: NDArray[np.int64] = np.cumsum(change[:-1]) + workspace
        needed.flags.writeable = False
        return needed


class Interval(NamedTuple):
    """An idle interval: `tensor` (an index into `Step.tensors`) is used by `after_op` and next
    by `needed_by_op`, which counts on past the last op if that use is in the next step.

    Moved with no time lost, the tensor is absent at ops `after_op` + 1 to `needed_by_op` - 1.
    """

    tensor: int
    after_op: int
    needed_by_op: int


def peak(step: Step) -> int:
    """Return the most bytes the step needs at one op with every tensor resident."""
    return int(step.demand.max())


def idle_intervals(step: Step, min_tensor_bytes: int) -> list[Interval]:
    """Return the intervals in which a tensor could be away, ordered by tensor and op.

    Left out are pinned tensors, tensors that take less than `min_tensor_bytes`, and intervals
    with no op inside. A tensor that the step never uses has none: it stays.
    """
    n_ops = len(step.ops)
    found = []
    for index, tensor in enumerate(step.tensors):
        if tensor.pinned or not tensor.uses or tensor.size < max(min_tensor_bytes, 1):
            continue
        found += intervals_of(index, tensor, n_ops)
    return found


def intervals_of(index: int, tensor: StepTensor, n_ops: int) -> list[Interval]:
    """Return the idle intervals with an op inside of tensor `index`, whatever its size."""
    ops = [use.op for use in tensor.uses]
    following = [*ops[1:], *(op + n_ops for op in ops[:1])] if tensor.persistent else ops[1:]
    return [Interval(index, a, n) for a, n in zip(ops, following, strict=False) if n >= a + 2]


def covers(interval: Interval, op: int, n_ops: int) -> bool:
    """Return whether `op`, of a step of `n_ops`, is inside `interval`."""
    return (op - interval.after_op - 1) % n_ops < interval.needed_by_op - interval.after_op - 1


def idle_ns(step: Step, interval: Interval) -> int:
    """Return how long `interval` lasts with unlimited memory, in ns."""
    turns, op = divmod(interval.needed_by_op, len(step.ops))
    starts = step.ops[op].start_ns + turns * step.period_ns
    return starts - step.ops[interval.after_op].end_ns


@no_collections()
def load_step(trace: Trace) -> Step:
    """Return the last complete step of a trace.

    Raises BadInputError if its ops are not numbered from 0 without a gap, or a tensor is used
    outside its life.
    """
    table = trace.table
    steps = table.column("step").to_numpy()
    first = int(np.searchsorted(steps, trace.last_step))
    rows = table.slice(first).unify_dictionaries()
    op = rows.column("op").to_numpy()
    numbers, heads = np.unique(op, return_index=True)
    if not np.array_equal(numbers, np.arange(len(numbers))) or np.any(np.diff(op) < 0):
        msg = f"the ops of step {trace.last_step} are not numbered from 0 in order"
        raise BadInputError(msg, hint="record the trace again")
    return Step(_ops(rows, heads), _tensors(rows, len(numbers), trace.info.pinned))


def _ops(rows: pa.Table, heads: NDArray[np.int64]) -> tuple[Op, ...]:
    start = _numbers(rows, "start_ns")[heads]
    duration = _numbers(rows, "duration_ns")[heads]
    workspace = _numbers(rows, "workspace_bytes")[heads]
    columns = (start, duration, workspace)
    if any((column < 0).any() or (column > MOST).any() for column in columns):
        msg = f"an op of the trace has a time or workspace that is not from 0 to {MOST}"
        raise BadInputError(msg, hint="record the trace again")
    workspace = -(-workspace // GRANULE) * GRANULE
    busy = np.cumsum(duration) - duration
    start = np.maximum.accumulate(start - busy) + busy
    return tuple(
        map(
            Op,
            _words(rows, "op_name", heads),
            _words(rows, "phase", heads),
            _words(rows, "module", heads),
            start.tolist(),
            duration.tolist(),
            workspace.tolist(),
        )
    )


def _tensors(rows: pa.Table, n_ops: int, pinned: frozenset[int]) -> tuple[StepTensor, ...]:
    with_storage = rows.filter(rows.column("tensor").is_valid())
    if not with_storage.num_rows:
        msg = "the last step of the trace uses no storage"
        raise BadInputError(msg, hint="record the trace again")
    access = np.array(_words(with_storage, "access", slice(None)), dtype=np.object_)
    if unknown := set(access.tolist()).difference(ACCESSES):
        msg = f"the trace has accesses that are none of {', '.join(ACCESSES)}: {len(unknown)} kinds"
        raise BadInputError(msg, hint="record the trace again")
    op = _numbers(with_storage, "op")
    used = access != "none"
    earlier_uses = np.cumsum(used) - used
    op_heads = np.searchsorted(op, op, side="left")
    slot = earlier_uses - earlier_uses[op_heads]

    order = np.argsort(_numbers(with_storage, "tensor"), kind="stable")
    ids = _numbers(with_storage, "tensor")[order]
    heads = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
    uses = _uses(op[order], access[order], heads)
    sizes = np.maximum.reduceat(_numbers(with_storage, "nbytes")[order], heads)
    if (sizes > LARGEST).any():
        msg = f"a tensor of the trace is larger than {LARGEST} bytes"
        raise BadInputError(msg, hint="record the trace again")
    if sum(sizes.tolist()) > MOST_TOGETHER:
        msg = f"the tensors of the trace take more than {MOST_TOGETHER} bytes together"
        raise BadInputError(msg, hint="record the trace again")
    firsts = order[heads]
    columns = zip(
        ids[heads].tolist(),
        sizes.tolist(),
        (-(-sizes // GRANULE) * GRANULE).tolist(),
        _words(with_storage, "kind", firsts),
        _words(with_storage, "name", firsts),
        _optional(with_storage, "alloc_op", firsts),
        _optional(with_storage, "free_op", firsts),
        uses,
        slot[firsts].tolist(),
        strict=True,
    )
    return tuple(_tensor(n_ops, pinned, *column) for column in columns)


def _tensor(
    n_ops: int,
    pinned: frozenset[int],
    identity: int,
    nbytes: int,
    size: int,
    kind: str,
    name: str,
    alloc_op: int | None,
    free_op: int | None,
    uses: tuple[Use, ...],
    slot: int,
) -> StepTensor:
    birth = 0 if alloc_op is None else alloc_op
    death = n_ops - 1 if free_op is None else free_op
    inside = 0 <= birth <= death < n_ops and nbytes >= 0
    if not inside or (uses and not birth <= uses[0].op <= uses[-1].op <= death):
        msg = f"tensor {identity} has a negative size, or is used outside its life"
        raise BadInputError(msg, hint="record the trace again")
    first_op, slot = (uses[0].op, slot) if uses else (-1, -1)
    is_pinned = identity in pinned
    return StepTensor(
        identity, nbytes, size, kind, name, alloc_op, free_op, uses, first_op, slot, is_pinned
    )


def _uses(
    op: NDArray[np.int64], access: NDArray[np.object_], heads: NDArray[np.int64]
) -> list[tuple[Use, ...]]:
    """Return the uses of each tensor; `op` and `access` are its rows, from `heads` on."""
    tails = [*heads[1:].tolist(), len(op)]
    rows = list(zip(op.tolist(), access.tolist(), strict=True))
    return [_merged(rows[a:b]) for a, b in zip(heads.tolist(), tails, strict=True)]


def _merged(rows: list[tuple[int, str]]) -> tuple[Use, ...]:
    uses: dict[int, Use] = {}
    for op, access in rows:
        if access == "none":
            continue
        use = Use(op, *_READS_WRITES[access])
        if op in uses:
            before = uses[op]
            use = Use(op, use.reads or before.reads, use.writes or before.writes)
        uses[op] = use
    return tuple(uses.values())


def _numbers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(rows.column(name).to_numpy(), dtype=np.int64)


def _optional(rows: pa.Table, name: str, indices: NDArray[np.int64]) -> list[int | None]:
    values: list[int | None] = rows.column(name).take(indices).to_pylist()
    return values


def _words(rows: pa.Table, name: str, indices: Any) -> list[str]:
    column: Any = rows.column(name).combine_chunks()
    words = np.empty(len(column.dictionary) + 1, dtype=np.object_)
    words[:-1] = column.dictionary.to_pylist()
    words[-1] = ""
    codes = column.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)[indices]
    found: list[str] = words[codes].tolist()
    return found
