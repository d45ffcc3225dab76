"""Every policy side by side, on one step, budget and hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from teraio.planner.make import make_plan
from teraio.planner.outcome import Outcome, outcome_of
from teraio.planner.plan import Budget, Controls
from teraio.planner.policies import POLICIES
from teraio.planner.problem import CannotFitError
from teraio.planner.step import load_step, peak
from teraio.profiler.errors import InfeasibleError, SolverMissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from teraio.planner.plan import Hardware, Plan
    from teraio.planner.step import Step
    from teraio.profiler.trace import Trace

IDEAL: Final = "keep"
"""The policy that moves nothing; without a limit it is what the others are compared with."""

COMPARED: Final = tuple(name for name in POLICIES if name != IDEAL)
"""The policies that are compared if none is named."""

_DEFAULT: Final = Controls()


@dataclass(frozen=True)
class Row:
    """A policy, and what its plan costs; `outcome` is None if it has none, `reason` says why."""

    policy: str
    outcome: Outcome | None
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """What each policy makes of the same step.

    `ideal` is the step with unlimited memory; its peak is what the step needs with nothing moved.
    `rows` are in the order of their steps' time, those with no plan last. `lower_bound_ns` holds
    for every plan, and is None if there is none. `least_bytes` is the least possible memory if
    `budget` is below it, or with `least_is_floor` what at least is needed.
    """

    budget: Budget
    hardware: Hardware
    lower_bound_ns: int | None
    ideal: Row
    rows: tuple[Row, ...]
    least_bytes: int | None = None
    least_is_floor: bool = False


def compare(
    trace: Trace,
    *,
    sha256: str,
    memory_bytes: int,
    host_bytes: int = 0,
    hardware: Hardware,
    policies: Sequence[str] = COMPARED,
    or_minimum: bool = False,
    margin: float = 0.0,
    controls: Controls = _DEFAULT,
    time_limit_s: float = 60.0,
    step: Step | None = None,
    on_policy: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Return what each of `policies` makes of the last complete step of `trace`.

    The arguments are those of `make_plan`; with `or_minimum` all policies get the least possible
    memory if `memory_bytes` is below it. The plan behind each row has passed the checker.
    `on_policy` is called with each policy before it answers.

    Raises UsageError if no policy is named, or one that is unknown or named twice, and for what
    `make_plan` raises it.
    """
    require_policies(policies)
    step = load_step(trace) if step is None else step
    plan_for = partial(
        make_plan, trace, sha256=sha256, host_bytes=host_bytes, hardware=hardware, margin=margin,
        controls=controls, time_limit_s=time_limit_s, step=step,
    )  # fmt: skip
    least = _least_above(plan_for, memory_bytes)
    if least is not None and or_minimum:
        memory_bytes, least = _minimum(plan_for, memory_bytes, least), None
    plans: dict[str, Plan] = {}
    reasons: dict[str, str] = {}
    bound_ns: int | None = None
    for name in policies:
        on_policy(name)
        try:
            plan = plan_for(memory_bytes=memory_bytes, policy=name, bound_ns=bound_ns)
        except (InfeasibleError, SolverMissingError) as error:
            reasons[name] = str(error).partition("\n")[0]
        else:
            plans[name], bound_ns = plan, plan.prediction.lower_bound_ns
    rows = [Row(name, outcome_of(step, plan, bound_ns or 1)) for name, plan in plans.items()]
    rows.sort(key=lambda row: row.outcome.step_ns if row.outcome else 0)
    return Comparison(
        budget=Budget(memory_bytes, host_bytes, margin),
        hardware=hardware,
        lower_bound_ns=bound_ns,
        ideal=Row(IDEAL, _ideal(plan_for, step)),
        rows=(*rows, *(Row(name, None, reason) for name, reason in reasons.items())),
        least_bytes=None if least is None else least.least_bytes,
        least_is_floor=least is not None and least.is_floor,
    )


def require_policies(names: Sequence[str]) -> None:
    """Check the names of policies; raises UsageError.

    There must be one, and none that is unknown or named twice.
    """
    known = ("auto", *POLICIES)
    hint = f"the policies are {', '.join(known)}"
    if not names:
        msg = "no policy is named"
        raise UsageError(msg, hint=hint)
    for index, name in enumerate(names):
        if name not in known:
            msg = f"unknown policy: `{name}`"
            raise UsageError(msg, hint=hint)
        if name in names[:index]:
            msg = f"the policy `{name}` is named twice"
            raise UsageError(msg, hint="name each once")


def _least_above(plan_for: Callable[..., Plan], memory_bytes: int) -> InfeasibleError | None:
    """Return the error that says the least possible memory if it is above `memory_bytes`."""
    try:
        plan_for(memory_bytes=memory_bytes, policy=IDEAL)
    except CannotFitError:
        return None
    except InfeasibleError as error:
        return error
    return None


def _minimum(plan_for: Callable[..., Plan], memory_bytes: int, least: InfeasibleError) -> int:
    """Return the least possible memory, or where only a floor is known what a search finds."""
    if least.least_bytes is not None and not least.is_floor:
        return least.least_bytes
    return plan_for(memory_bytes=memory_bytes, or_minimum=True).budget.memory_bytes


def _ideal(plan_for: Callable[..., Plan], step: Step) -> Outcome:
    plan = plan_for(memory_bytes=max(peak(step), 1), policy=IDEAL, margin=0.0)
    return replace(outcome_of(step, plan, step.period_ns), seconds=0.0)
