"""Why a step cannot fit a budget, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from teraio.planner.controls import matched
from teraio.planner.step import covers, intervals_of
from teraio.planner.units import format_bytes
from teraio.profiler.errors import InfeasibleError

if TYPE_CHECKING:
    from teraio.planner.minimum import Least
    from teraio.planner.plan import Budget, Controls
    from teraio.planner.problem import Problem
    from teraio.planner.step import Step

_TENSORS_NAMED: Final = 5


def infeasible(
    problem: Problem, budget: Budget, least: Least, possible: Budget, controls: Controls
) -> InfeasibleError:
    """Return the error for a `budget` below `possible`, which has the `least` memory.

    It names the op that sets the least, the largest tensors that are alive there, and how many
    bytes are idle there and stay only because of a control. Where host memory or writes to the SSD
    are limited, `possible` is only a floor, and the error says so.
    """
    is_floor = limits_moves(problem)
    amount = _both(possible.memory_bytes)
    lack = f"at least {amount} are needed" if is_floor else f"the least possible is {amount}"
    op = problem.step.ops[least.op]
    where = f"`{op.name}`" + (f" in `{op.module}`" if op.module else "")
    lines = [
        f"no plan fits {_both(budget.memory_bytes)}"
        + (f" less a margin of {budget.margin:.1%}" if budget.margin else "")
        + f": {lack}",
        f"op {least.op}, {where}, sets it: alive there are",
        *_alive(least),
        *_ruled(problem, least, controls),
    ]
    hint = f"take `--memory {possible.memory_bytes}`, or `--or-minimum` for just that"
    if is_floor:
        hint = "`--or-minimum` searches for the least memory that has a plan under these limits"
    return InfeasibleError(
        "\n".join(lines), hint=hint, least_bytes=possible.memory_bytes, is_floor=is_floor
    )


def limits_moves(problem: Problem) -> bool:
    """Return whether a tier may hold or take too little, so that `least_memory` is only a floor."""
    return problem.ssd_write_bytes is not None or not problem.ssd or bool(problem.never_ssd)


def looser(problem: Problem) -> str:
    """Return what might let a policy succeed that found nothing, as a hint."""
    ways = ["more `--memory` (`--or-minimum` searches for the least)"]
    if problem.host_bytes:
        ways.append("more `--host-memory`")
    if problem.ssd and problem.ssd_write_bytes is not None:
        ways.append("a larger `--ssd-writes`")
    if not problem.ssd:
        ways.append("`--tiers ssd,host`")
    return f"try {', '.join(ways)}, or another `--policy`"


def _alive(least: Least) -> list[str]:
    lines = [
        f"  {format_bytes(tensor.size)} {tensor.kind} {tensor.name or f'tensor {tensor.id}'}"
        for tensor in least.tensors[:_TENSORS_NAMED]
    ]
    rest = least.tensors[_TENSORS_NAMED:]
    if rest:
        lines.append(f"  {format_bytes(sum(t.size for t in rest))} in {len(rest)} smaller tensors")
    if least.workspace_bytes:
        lines.append(f"  {format_bytes(least.workspace_bytes)} workspace of the op")
    if least.host_lack_bytes:
        lack = format_bytes(least.host_lack_bytes)
        lines.append(f"  {lack} that may only go to host memory, which is full (`--host-memory`)")
    return lines


def _ruled(problem: Problem, least: Least, controls: Controls) -> list[str]:
    """Return a line for each control that keeps bytes there which are idle."""
    step = problem.step
    alive = {tensor.id for tensor in least.tensors}
    kept = matched(step, controls.keep)
    small, by_keep, no_tier = 0, 0, 0
    for index, tensor in enumerate(step.tensors):
        if tensor.id not in alive or tensor.pinned or not _idle(step, index, least.op):
            continue
        if tensor.size < controls.min_tensor_bytes:
            small += tensor.size
        elif index in kept:
            by_keep += tensor.size
        else:
            no_tier += tensor.size
    smallest = format_bytes(controls.min_tensor_bytes)
    ruled = {
        f"tensors under {smallest}, which stay (`--min-tensor`)": small,
        "tensors that are kept (`--keep`)": by_keep,
        "tensors that may not go to the SSD (`--never-ssd`), and there is no host memory": no_tier,
    }
    return [f"{format_bytes(n)} of it is idle there in {what}" for what, n in ruled.items() if n]


def _idle(step: Step, index: int, op: int) -> bool:
    n_ops = len(step.ops)
    gaps = intervals_of(index, step.tensors[index], n_ops)
    return any(covers(gap, op, n_ops) for gap in gaps)


def _both(nbytes: int) -> str:
    return f"{nbytes} bytes ({format_bytes(nbytes)})"
