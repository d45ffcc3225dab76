"""Whether a plan can be replayed on a step: both have the same ops and tensors, and the plan
keeps the rules there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from teraio.planner.check import PlanCheckError, check_rules
from teraio.profiler.errors import BadInputError

if TYPE_CHECKING:
    from teraio.planner.plan import Plan
    from teraio.planner.step import Step


def require_match(step: Step, plan: Plan) -> None:
    """Check that `plan` moves tensors of `step`, between ops of `step`.

    Raises BadInputError, which names the first difference: the number of ops, an op's name, or a
    tensor that is missing or has another size.
    """
    difference = _difference(step, plan)
    if difference:
        msg = f"the plan is for another trace: {difference}"
        raise BadInputError(msg, hint="name the trace that the plan was made from")


def require_sound(step: Step, plan: Plan) -> None:
    """Check that `plan` keeps the rules of `check_rules` on `step`, whatever it predicts.

    Raises BadInputError, which names the rule and the action that breaks it.
    """
    try:
        check_rules(step, plan)
    except PlanCheckError as error:
        hint = "make the plan again; one that was changed by hand must keep every rule"
        raise BadInputError(str(error), hint=hint) from error


def _difference(step: Step, plan: Plan) -> str:
    if plan.trace.ops != len(step.ops):
        return f"it has {plan.trace.ops} ops, the trace {len(step.ops)}"
    for number, op in enumerate(step.ops):
        planned = plan.trace.program.op_name(number)
        if planned != op.name:
            return f"op {number} is `{planned}` in it, `{op.name}` in the trace"
    nbytes = {tensor.id: tensor.nbytes for tensor in step.tensors}
    for entry in plan.tensors:
        name = f"tensor {entry.id}" + (f" `{entry.name}`" if entry.name else "")
        if entry.id not in nbytes:
            return f"{name} is not in the trace"
        if entry.nbytes != nbytes[entry.id]:
            return f"{name} has {entry.nbytes} bytes in it, {nbytes[entry.id]} in the trace"
    return ""
