"""A step, and what a plan makes of it, as trace events that Perfetto and chrome://tracing show.

The format is Chrome's trace-event JSON: times in us, here with the ns behind the point.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from teraio.planner.absence import absences
from teraio.planner.minimum import absent_bytes
from teraio.planner.plan import Offload
from teraio.planner.simulate import simulate
from teraio.planner.step import Interval
from teraio.planner.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from teraio.planner.plan import Action, Plan
    from teraio.planner.step import Step, StepTensor

_PROCESS: Final = 1
_OPS: Final = 1
_WAITS: Final = 2


def trace_events(step: Step, plan: Plan | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of one steady step: its ops, and the memory each needs.

    With a plan the ops are where the simulator finds them, a track of its own shows what they
    wait for, and each move is drawn over the time the plan gives it. Moves that end in the next
    step reach past the end of this one.
    """
    waits = dict(simulate(step, plan).waits) if plan else {}
    delays = list(accumulate(waits.get(op, 0) for op in range(len(step.ops))))
    starts = [op.start_ns + delay for op, delay in zip(step.ops, delays, strict=True)]
    yield _named("process_name", 0, "one step")
    yield _named("thread_name", _OPS, "ops")
    yield from _ops(step, starts)
    if waits:
        yield _named("thread_name", _WAITS, "waits")
        for op, ns in waits.items():
            yield _slice(_WAITS, f"op {op} waits", starts[op] - ns, ns, "wait", {})
    yield from _memory(step, starts, plan)
    if plan:
        ends = [start + op.duration_ns for start, op in zip(starts, step.ops, strict=True)]
        labels = {tensor.id: _label(tensor) for tensor in step.tensors}
        for action in plan.actions:
            yield from _move(action, labels[action.tensor], starts, ends)


def _us(ns: int) -> float:
    return ns / 1000


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _slice(
    thread: int, name: str, start_ns: int, ns: int, category: str, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": category, "pid": _PROCESS, "tid": thread,
        "ts": _us(start_ns), "dur": _us(ns), "args": args,
    }  # fmt: skip


def _ops(step: Step, starts: list[int]) -> Iterator[dict[str, Any]]:
    for number, (op, start) in enumerate(zip(step.ops, starts, strict=True)):
        args = {"op": number, "module": op.module, "workspace_bytes": op.workspace_bytes}
        yield _slice(_OPS, op.name, start, op.duration_ns, op.phase, args)


def _memory(step: Step, starts: list[int], plan: Plan | None) -> Iterator[dict[str, Any]]:
    """Yield the bytes each op needs, with all tensors there and with the plan's away."""
    whole = step.demand
    values = {"without a plan": whole}
    if plan:
        values["with the plan"] = whole - absent_bytes(step, _away(step, plan))
    for name, needed in values.items():
        for start, nbytes in zip(starts, needed.tolist(), strict=True):
            yield {
                "ph": "C", "name": f"memory {name}", "pid": _PROCESS, "ts": _us(start),
                "args": {"bytes": nbytes},
            }  # fmt: skip


def _away(step: Step, plan: Plan) -> list[Interval]:
    """Return the ops at which the plan has tensors away, as intervals from use to use."""
    index_of = {tensor.id: index for index, tensor in enumerate(step.tensors)}
    n_ops = len(step.ops)
    away = []
    for offload, prefetch in absences(plan.actions):
        first, last = offload.gone_by_op, prefetch.after_op
        last += n_ops if last < first else 0
        away.append(Interval(index_of[offload.tensor], first - 1, last + 1))
    return away


def _move(
    action: Action, label: str, starts: list[int], ends: list[int]
) -> Iterator[dict[str, Any]]:
    """Yield the begin and the end of the time that the plan gives an action."""
    if isinstance(action, Offload):
        track = f"{'offload' if action.write else 'drop'} to {action.to}"
        until = action.gone_by_op
    else:
        track, until = f"prefetch from {action.source}", action.needed_by_op
    next_step = ends[-1] if until <= action.after_op else 0
    for phase, ns in (("b", ends[action.after_op]), ("e", starts[until] + next_step)):
        yield {
            "ph": phase, "cat": track, "name": label, "pid": _PROCESS, "tid": _OPS,
            "id": f"{track} {action.tensor} {action.after_op}", "ts": _us(ns),
        }  # fmt: skip


def _label(tensor: StepTensor) -> str:
    return f"{tensor.name or f'tensor {tensor.id}'}, {format_bytes(tensor.nbytes)}"
