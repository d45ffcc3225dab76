"""What a trace says about one step, as plain data: stable keys, bytes and ns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from teraio.planner.step import covers, idle_intervals, idle_ns, load_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.step import Step, StepTensor
    from teraio.profiler.trace import Trace


def summarise_trace(trace: Trace, top: int) -> dict[str, Any]:
    """Return the summary that `teraio inspect --json` prints, with the `top` largest tensors."""
    step = load_step(trace)
    info = trace.info
    needed = step.demand
    peak_op = int(needed.argmax())
    return {
        "file": "trace",
        "device": info.device,
        "device_memory_bytes": info.device_memory_bytes,
        "torch": info.torch_version,
        "rank": info.rank,
        "world_size": info.world_size,
        "command": list(info.command),
        "runnable": bool(info.fingerprint),
        "steps": info.steps,
        "ops": len(step.ops),
        "tensors": len(step.tensors),
        "step_ns": step.period_ns,
        "peak": _peak(step, peak_op, int(needed[peak_op])),
        "active": _active(step, needed),
        "idle": _idle(step, peak_op),
        "largest": [_tensor(step, tensor) for tensor in _largest(step, top)],
    }


def _peak(step: Step, op: int, nbytes: int) -> dict[str, Any]:
    at = step.ops[op]
    by_kind: dict[str, int] = {}
    for tensor in step.tensors:
        if _alive(tensor, op):
            by_kind[tensor.kind] = by_kind.get(tensor.kind, 0) + tensor.size
    return {
        "bytes": nbytes,
        "op": op,
        "op_name": at.name,
        "phase": at.phase,
        "module": at.module,
        "workspace_bytes": at.workspace_bytes,
        "by_kind": dict(sorted(by_kind.items(), key=lambda item: -item[1])),
    }


def _alive(tensor: StepTensor, op: int) -> bool:
    born = tensor.alloc_op is None or tensor.alloc_op <= op
    return born and (tensor.free_op is None or op <= tensor.free_op)


def _active(step: Step, needed: NDArray[np.int64]) -> dict[str, Any]:
    """Bytes that ops really use, against those allocated; means are weighted by device time."""
    used = np.array([op.workspace_bytes for op in step.ops], dtype=np.int64)
    for tensor in step.tensors:
        used[[use.op for use in tensor.uses]] += tensor.size
    weights = np.array([max(op.duration_ns, 1) for op in step.ops], dtype=np.float64)
    share = used / np.maximum(needed, 1)
    return {
        "mean_bytes": int(np.average(used, weights=weights)),
        "max_bytes": int(used.max()),
        "mean_share": float(np.average(share, weights=weights)),
        "max_share": float(share.max()),
    }


def _idle(step: Step, peak_op: int) -> dict[str, Any]:
    intervals = idle_intervals(step, 0)
    lengths = [idle_ns(step, interval) for interval in intervals] or [0]
    away = {i.tensor for i in intervals if covers(i, peak_op, len(step.ops))}
    return {
        "intervals": len(intervals),
        "tensors": len({interval.tensor for interval in intervals}),
        "median_ns": int(np.median(lengths)),
        "longest_ns": max(lengths),
        "bytes_at_peak": sum(step.tensors[index].size for index in away),
    }


def _largest(step: Step, top: int) -> list[StepTensor]:
    return sorted(step.tensors, key=lambda tensor: (-tensor.size, tensor.id))[:top]


def _tensor(step: Step, tensor: StepTensor) -> dict[str, Any]:
    maker = None if tensor.alloc_op is None else step.ops[tensor.alloc_op]
    return {
        "id": tensor.id,
        "nbytes": tensor.nbytes,
        "kind": tensor.kind,
        "name": tensor.name,
        "alloc_op": tensor.alloc_op,
        "free_op": tensor.free_op,
        "uses": len(tensor.uses),
        "made_by": maker.name if maker else "",
        "made_in": maker.module if maker else "",
    }
