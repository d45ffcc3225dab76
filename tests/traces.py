"""Small synthetic traces from a compact description, and strategies for random ones.

Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from hypothesis import strategies as st

from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.profiler.trace import SCHEMA, Trace, TraceInfo

MIB = 1 << 20
_ACCESS = {"r": "read", "w": "write", "rw": "readwrite"}


@dataclass(frozen=True)
class T:
    """A tensor: `uses` is like "0w 3r 7rw"; `alloc` and `free` as in the trace."""

    id: int
    nbytes: int
    uses: str = ""
    alloc: int | None = None
    free: int | None = None
    kind: str = "activation"
    name: str = ""


def inner(identity: int, mib: int, first: int, last: int) -> T:
    """A tensor that op `first` makes and op `last` reads and frees."""
    return T(identity, mib * MIB, f"{first}w {last}r", alloc=first, free=last)


def brief(identity: int, mib: int, op: int) -> T:
    """A tensor that is alive in one op."""
    return T(identity, mib * MIB, f"{op}w", alloc=op, free=op)


def make_trace(
    n_ops: int,
    tensors: list[T],
    *,
    durations: list[int] | int = 1_000_000,
    gaps: list[int] | int = 0,
    workspace: dict[int, int] | None = None,
    steps: int = 1,
    pinned: tuple[int, ...] = (),
    signatures: bool = True,
) -> Trace:
    """Return a trace of `steps` equal steps; op k starts `gaps[k]` ns after op k - 1 ends."""
    durations = [durations] * n_ops if isinstance(durations, int) else durations
    gaps = [gaps] * n_ops if isinstance(gaps, int) else gaps
    rows: list[dict[str, object]] = []
    clock = 0
    by_op = _accesses(tensors)
    for op in range(n_ops):
        clock += gaps[op]
        base = {
            "op": op,
            "op_name": f"aten.op{op % 7}",
            "phase": "forward" if op < n_ops // 2 else "backward",
            "module": f"layers.{op}",
            "start_ns": clock,
            "duration_ns": durations[op],
            "workspace_bytes": (workspace or {}).get(op, 0),
        }
        rows += [base | access for access in by_op.get(op, [_nothing()])]
        clock += durations[op]
    rows = [{"step": step} | row for step in range(steps) for row in rows]
    info = TraceInfo(
        device="cpu",
        device_memory_bytes=0,
        torch_version="2.13.0",
        allocator="",
        rank=0,
        world_size=1,
        steps=steps,
        command=("train.py",),
        fingerprint="f" * 64,
        signatures=tuple(range(n_ops)) if signatures else (),
        pinned=frozenset(pinned),
    )
    return Trace(pa.Table.from_pylist(rows, schema=SCHEMA), info)


def _nothing() -> dict[str, object]:
    return {
        "tensor": None, "access": None, "nbytes": 0, "kind": "other", "name": "",
        "alloc_op": None, "free_op": None,
    }  # fmt: skip


def _accesses(tensors: list[T]) -> dict[int, list[dict[str, object]]]:
    by_op: dict[int, list[dict[str, object]]] = {}
    for tensor in tensors:
        words = tensor.uses.split() or ["0none"]
        for word in words:
            digits = "".join(c for c in word if c.isdigit())
            row = {
                "tensor": tensor.id,
                "access": _ACCESS.get(word[len(digits) :], "none"),
                "nbytes": tensor.nbytes,
                "kind": tensor.kind,
                "name": tensor.name,
                "alloc_op": tensor.alloc,
                "free_op": tensor.free,
            }
            by_op.setdefault(int(digits), []).append(row)
    return by_op


@st.composite
def traces(draw: st.DrawFn, *, max_ops: int = 24, max_tensors: int = 12) -> Trace:
    """Any small trace: tensors of every life, size and access pattern, gaps and workspace."""
    n_ops = draw(st.integers(2, max_ops))
    durations = draw(st.lists(st.integers(0, 3_000_000), min_size=n_ops, max_size=n_ops))
    durations[-1] += 1
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 500_000]), min_size=n_ops, max_size=n_ops))
    tensors = [draw(_tensor(i, n_ops)) for i in range(draw(st.integers(1, max_tensors)))]
    workspace = draw(
        st.dictionaries(st.integers(0, n_ops - 1), st.integers(0, 2 * MIB), max_size=3)
    )
    pinned = tuple(draw(st.sets(st.sampled_from([t.id for t in tensors]), max_size=1)))
    return make_trace(
        n_ops, tensors, durations=durations, gaps=gaps, workspace=workspace, pinned=pinned
    )


@st.composite
def _tensor(draw: st.DrawFn, identity: int, n_ops: int) -> T:
    life = draw(st.sampled_from(["persistent", "persistent", "inner", "inner", "old", "new"]))
    born = draw(st.integers(0, n_ops - 1)) if life in {"inner", "new"} else None
    free = draw(st.integers(born or 0, n_ops - 1)) if life in {"inner", "old"} else None
    last = n_ops - 1 if free is None else free
    ops = sorted(draw(st.sets(st.integers(born or 0, last), max_size=6)))
    words = [draw(st.sampled_from(["r", "r", "r", "w", "rw"])) for _ in ops]
    if born is not None:
        ops, words = [born, *[op for op in ops if op > born]], ["w", *words]
    uses = " ".join(f"{op}{word}" for op, word in zip(ops, words, strict=False))
    nbytes = draw(st.one_of(st.integers(0, 12 * MIB), st.integers(MIB, 12 * MIB), st.just(4 * MIB)))
    return T(identity * 10 + 1, nbytes, uses, born, free)


def training_trace(
    layers: int, *, width: int = 4 * MIB, op_ns: int = 500_000, micro_batches: int = 1
) -> Trace:
    """A training step in miniature: forward, backward and optimizer over `layers` layers.

    Each layer has a parameter, an optimizer state, a gradient and, for each micro-batch, an
    activation that waits for the backward pass.
    """
    per_pass = 2 * layers * 2
    n_ops = micro_batches * per_pass + layers
    tensors = []
    for layer in range(layers):
        uses, gradient = [], []
        for batch in range(micro_batches):
            base = batch * per_pass
            forward = base + 2 * layer
            backward = base + 2 * layers + 2 * (layers - 1 - layer)
            uses += [f"{forward}r", f"{backward}r"]
            gradient.append(f"{backward + 1}{'rw' if batch else 'w'}")
            activation = T(
                (3 + batch) * layers + layer,
                width,
                f"{forward}w {forward + 1}r {backward}r",
                forward,
                backward,
                name="",
            )
            tensors.append(activation)
        update = micro_batches * per_pass + layer
        first_gradient = 2 * layers + 2 * (layers - 1 - layer) + 1
        tensors += [
            T(layer, width, " ".join([*uses, f"{update}rw"]), kind="parameter",
              name=f"layers.{layer}.weight"),
            T(layers + layer, width, f"{update}rw", kind="optimizer_state",
              name=f"layers.{layer}.weight.exp_avg"),
            T(2 * layers + layer, width, " ".join([*gradient, f"{update}r"]), first_gradient,
              update, kind="gradient", name=f"layers.{layer}.weight.grad"),
        ]  # fmt: skip
    return make_trace(n_ops, tensors, durations=op_ns, steps=2)


def with_info(trace: Trace, **changes: object) -> Trace:
    """Return the trace with other metadata."""
    return Trace(trace.table, replace(trace.info, **changes))  # type: ignore[arg-type]


@st.composite
def hardware(draw: st.DrawFn) -> Hardware:
    """Channels from much too slow to much faster than the traces of this module need."""
    rate = st.sampled_from([10**8, 10**9, 6_700_000_000, 10**11])
    ssd = Ssd(draw(rate), draw(rate), draw(st.sampled_from([0, 20_000])))
    return Hardware(ssd, HostLink(draw(rate), draw(rate)), {"ssd": "given"})
