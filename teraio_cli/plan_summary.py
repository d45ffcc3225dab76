"""What a plan says, as plain data: stable keys, bytes and ns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from teraio.planner.endurance import endurance
from teraio.planner.plan import Offload

if TYPE_CHECKING:
    from teraio.planner.plan import Action, Plan, PlannedTensor


def summarise_plan(plan: Plan, top: int) -> dict[str, Any]:
    """Return the summary that `teraio inspect --json` prints.

    It has the `top` tensors that move most bytes and the first `top` actions.
    """
    moved = moved_bytes(plan)
    busiest = sorted(plan.tensors, key=lambda tensor: (-moved[tensor.id], tensor.id))
    return {
        "file": "plan",
        "trace": {
            "sha256": plan.trace.sha256,
            "fingerprint": plan.trace.fingerprint,
            "steps": plan.trace.steps,
            "ops": plan.trace.ops,
        },
        "hardware": asdict(plan.hardware),
        "budget": asdict(plan.budget),
        "controls": asdict(plan.controls),
        "policy": asdict(plan.policy),
        "prediction": asdict(plan.prediction),
        "endurance": asdict(endurance(plan)),
        "tensors": len(plan.tensors),
        "actions": _counts(plan.actions),
        "moving": [_tensor(tensor, moved[tensor.id]) for tensor in busiest[:top]],
        "first_actions": [_action(plan, action) for action in plan.actions[:top]],
    }


def moved_bytes(plan: Plan) -> dict[int, int]:
    """Return the bytes each tensor of the plan moves in one step, both ways together."""
    size = {tensor.id: tensor.nbytes for tensor in plan.tensors}
    moved = dict.fromkeys(size, 0)
    for action in plan.actions:
        if not isinstance(action, Offload) or action.write:
            moved[action.tensor] += size[action.tensor]
    return moved


def _counts(actions: tuple[Action, ...]) -> dict[str, int]:
    offloads = [action for action in actions if isinstance(action, Offload)]
    writes = sum(action.write for action in offloads)
    return {
        "writes": writes,
        "drops": len(offloads) - writes,
        "prefetches": len(actions) - len(offloads),
    }


def _tensor(tensor: PlannedTensor, moved: int) -> dict[str, Any]:
    return {
        "id": tensor.id,
        "nbytes": tensor.nbytes,
        "kind": tensor.kind,
        "name": tensor.name,
        "moved_bytes": moved,
    }


def _action(plan: Plan, action: Action) -> dict[str, Any]:
    name = plan.trace.program.op_name(action.after_op)
    common = {"tensor": action.tensor, "after_op": action.after_op, "op_name": name}
    if isinstance(action, Offload):
        do, tier, by_op = "offload" if action.write else "drop", action.to, action.gone_by_op
    else:
        do, tier, by_op = "prefetch", action.source, action.needed_by_op
    return {"do": do, "tier": tier, **common, "by_op": by_op}
