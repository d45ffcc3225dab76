"""What a user's controls mean for a step: which tensors may move, and to which tiers."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from teraio.planner.plan import HOST, SSD, Offload
from teraio.planner.problem import Problem
from teraio.planner.step import idle_intervals
from teraio.profiler.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from teraio.planner.plan import Budget, Controls, Hardware, Plan
    from teraio.planner.step import Step, StepTensor


def label(step: Step, tensor: StepTensor) -> str:
    """Return the tensor's name, or `OP in MODULE` of the op that made it, or "".

    It is what `teraio inspect` shows: an activation has no name, but it has an origin. A tensor
    that is older than the step and has no name has neither.
    """
    if tensor.name or tensor.alloc_op is None:
        return tensor.name
    maker = step.ops[tensor.alloc_op]
    return maker.name + (f" in {maker.module}" if maker.module else "")


def texts(step: Step, tensor: StepTensor) -> tuple[str, str]:
    """Return the two texts in which a regular expression is searched for.

    They are the label and `KIND:LABEL`. So `layers\\.3\\.` and `^embed` find names, and
    `^optimizer_state:` finds a kind.
    """
    own = label(step, tensor)
    return own, f"{tensor.kind}:{own}"


def matches(step: Step, patterns: Iterable[str]) -> dict[str, frozenset[int]]:
    """Return the tensors (indices into `Step.tensors`) that each regular expression matches.

    Raises UsageError for a pattern that is no regular expression.
    """
    compiled = {pattern: _compiled(pattern) for pattern in patterns}
    if not compiled:
        return {}
    of_tensors = [texts(step, tensor) for tensor in step.tensors]
    return {
        pattern: frozenset(
            index for index, own in enumerate(of_tensors) if any(map(regex.search, own))
        )
        for pattern, regex in compiled.items()
    }


def matched(step: Step, patterns: Iterable[str]) -> frozenset[int]:
    """Return the tensors that any of the regular expressions matches; raises UsageError."""
    return frozenset().union(*matches(step, patterns).values())


def pattern_fault(pattern: str) -> str:
    """Return why `pattern` is no regular expression, or "" if it is one."""
    try:
        _compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error) or type(error).__name__
    return ""


def problem_of(
    step: Step,
    budget: Budget,
    hardware: Hardware,
    controls: Controls,
    time_limit_s: float = 60.0,
) -> Problem:
    """Return what a policy is asked under `controls`: only intervals that may be used are in it.

    Raises UsageError for a pattern that is no regular expression.
    """
    kept = matched(step, controls.keep)
    problem = Problem(
        step=step,
        intervals=(),
        planned_bytes=budget.planned_bytes,
        host_bytes=budget.host_bytes if HOST in controls.tiers else 0,
        hardware=hardware,
        ssd=SSD in controls.tiers,
        never_ssd=matched(step, controls.never_ssd),
        ssd_write_bytes=controls.ssd_write_bytes,
        time_limit_s=time_limit_s,
    )
    movable = tuple(
        interval
        for interval in idle_intervals(step, controls.min_tensor_bytes)
        if interval.tensor not in kept and problem.tiers(interval.tensor)
    )
    return replace(problem, intervals=movable)


def host_only(problem: Problem) -> frozenset[int]:
    """Return the tensors that could move, but to host memory only."""
    tensors = {interval.tensor for interval in problem.intervals}
    return frozenset(tensor for tensor in tensors if problem.tiers(tensor) == (HOST,))


def control_fault(step: Step, plan: Plan) -> str:
    """Return how a move of `plan` breaks its controls, or "" if none does.

    For the checker: it looks at the actions and the step, and at nothing a policy made.
    """
    controls = plan.controls
    index_of = {tensor.id: index for index, tensor in enumerate(step.tensors)}
    kept, never_ssd = matched(step, controls.keep), matched(step, controls.never_ssd)
    written = 0
    for action in plan.actions:
        index = index_of[action.tensor]
        tensor = step.tensors[index]
        tier = action.to if isinstance(action, Offload) else action.source
        if tier not in controls.tiers:
            return f"tensor {tensor.id} moves to or from {tier}, which is not to be used"
        if index in kept:
            return f"tensor {tensor.id} is to be kept on the device"
        if tier == SSD and index in never_ssd:
            return f"tensor {tensor.id} is never to go to the SSD"
        if tensor.size < controls.min_tensor_bytes:
            return f"tensor {tensor.id} is smaller than the least to be moved"
        if tier == SSD and isinstance(action, Offload) and action.write:
            written += tensor.nbytes
    limit = controls.ssd_write_bytes
    if limit is not None and written > limit:
        return f"{written} bytes are written to the SSD, {written - limit} over the {limit} allowed"
    return ""


def _compiled(pattern: str) -> re.Pattern[str]:
    fault = pattern_fault(pattern)
    if fault:
        msg = f"not a regular expression: `{pattern}` ({fault})"
        raise UsageError(msg, hint=_FORMS)
    return _compile(pattern)


def _compile(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings(action="ignore"):
        return re.compile(pattern)


_FORMS: Final = r"write `layers\.3\.` for a part of a name, `^embed` for its start"
