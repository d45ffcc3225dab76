"""From a trace, a budget and the hardware to a checked plan."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from teraio.planner.absence import planned_peak
from teraio.planner.bound import lower_bound_ns
from teraio.planner.check import check_plan
from teraio.planner.controls import host_only, problem_of
from teraio.planner.garbage import no_collections
from teraio.planner.infeasible import infeasible
from teraio.planner.minimum import least_memory
from teraio.planner.plan import (
    HOST,
    SSD,
    Action,
    Budget,
    Controls,
    Hardware,
    Plan,
    PlannedTensor,
    Prediction,
    Program,
    TraceRef,
)
from teraio.planner.plan import Policy as PolicyRecord
from teraio.planner.policies import AUTO, POLICIES, policy_named
from teraio.planner.problem import Answer, CannotFitError, Policy, Problem
from teraio.planner.reach import answer_that_fits, least_found
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import Step, load_step, peak
from teraio.planner.usage import traffic
from teraio.profiler.errors import BadInputError, InfeasibleError, UsageError
from teraio.profiler.trace import GRANULE

if TYPE_CHECKING:
    from teraio.profiler.trace import Trace

_LONGEST_NS: Final = 2**63 - 1
"""The longest step that a plan file can hold: 292 years."""

_MOST_GRANULES: Final = 2**32 - 1
"""The most that a plan file can say of one op, in units of 512 B: 2 TiB."""

_DEFAULT: Final = Controls()


@no_collections()
def make_plan(
    trace: Trace,
    *,
    sha256: str,
    memory_bytes: int,
    host_bytes: int = 0,
    hardware: Hardware,
    policy: str = "auto",
    or_minimum: bool = False,
    margin: float = 0.0,
    controls: Controls = _DEFAULT,
    time_limit_s: float = 60.0,
    step: Step | None = None,
    answering: Policy | None = None,
    bound_ns: int | None = None,
) -> Plan:
    """Return a plan, proven by the checker, for the last complete step of `trace`.

    `sha256` is that of the trace's file; `step` is that step if the caller has loaded it. A step
    that fits the budget gets a plan without actions. With `or_minimum` a budget below the least
    possible memory, or below the least for which the policy finds a plan, is raised to that. Host
    memory that `controls` rule out is not in the plan's budget. A policy with a solver stops after
    `time_limit_s` seconds. With `answering`, that answers and the plan calls it `policy`.
    `bound_ns` is the lower bound if one for the same budget, hardware and controls is known.

    Raises UsageError for an unknown policy, a control that cannot be meant or a margin outside
    0 to 1, InfeasibleError, which says what the least possible memory is and what sets it, for a
    budget below that, and CannotFitError if the policy finds nothing under the other limits.
    """
    _require_usable(AUTO if answering else policy, margin, time_limit_s)
    controls = _usable(controls, host_bytes)
    host_bytes = host_bytes if HOST in controls.tiers else 0
    step = load_step(trace) if step is None else step
    budget = Budget(memory_bytes, host_bytes, margin)
    problem = problem_of(step, budget, hardware, controls, time_limit_s)
    least = least_memory(step, problem.intervals, host_only(problem), problem.host_bytes)
    if budget.planned_bytes < least.nbytes:
        possible = _with_planned_bytes(least.nbytes, budget)
        if not or_minimum:
            raise infeasible(problem, budget, least, possible, controls)
        problem, budget = replace(problem, planned_bytes=possible.planned_bytes), possible
    started = time.perf_counter()
    problem, answer = _answer(problem, answering or policy_named(policy), or_minimum=or_minimum)
    seconds = time.perf_counter() - started
    budget = _with_planned_bytes(problem.planned_bytes, budget)
    plan = Plan(
        trace=_trace_ref(trace, step, sha256),
        hardware=hardware,
        budget=budget,
        policy=_record(policy, answer, seconds),
        prediction=_prediction(problem, answer, bound_ns),
        tensors=_planned_tensors(step, answer.actions),
        actions=answer.actions,
        controls=controls,
    )
    check_plan(step, plan)
    return plan


def _record(policy: str, answer: Answer, seconds: float) -> PolicyRecord:
    name = answer.policy or policy
    return PolicyRecord(name, seconds, answer.solver, answer.status, answer.gap)


def _require_usable(policy: str, margin: float, time_limit_s: float) -> None:
    if policy not in (AUTO, *POLICIES):
        msg = f"unknown policy: `{policy}`"
        raise UsageError(msg, hint=f"the policies are {', '.join([AUTO, *POLICIES])}")
    if not 0 <= margin < 1:
        msg = f"the margin must be a share from 0 to less than 1: {margin}"
        raise UsageError(msg, hint="a margin of `5%` keeps the plan that much below the budget")
    if not 0 < time_limit_s < math.inf:
        msg = f"the time limit must be more than zero seconds: {time_limit_s}"
        raise UsageError(msg, hint="`--time-limit 60` lets a solver search for a minute")


def _usable(controls: Controls, host_bytes: int) -> Controls:
    """Return `controls` with the tiers that are there."""
    amounts = {
        "host memory": host_bytes,
        "the least size of a tensor to move": controls.min_tensor_bytes,
        "what a step may write to the SSD": controls.ssd_write_bytes or 0,
    }
    for what, nbytes in amounts.items():
        if nbytes < 0:
            msg = f"{what} must not be negative: {nbytes} bytes"
            raise UsageError(msg, hint="leave it out to set no limit of your own")
    unknown = set(controls.tiers) - {SSD, HOST}
    if unknown:
        msg = f"there is no tier `{min(unknown)}`"
        raise UsageError(msg, hint="the tiers are `ssd` and `host`")
    there = tuple(t for t in (SSD, HOST) if t in controls.tiers and (t == SSD or host_bytes))
    if not there:
        msg = "tensors may move to host memory only, and there is none for them"
        raise UsageError(msg, hint="give some, as `--host-memory 32GiB`, or allow the SSD")
    return replace(controls, tiers=there)


def _with_planned_bytes(planned_bytes: int, like: Budget) -> Budget:
    """Return the budget `like` another that leaves `planned_bytes` after its margin."""
    if like.planned_bytes == planned_bytes:
        return like
    budget = replace(like, memory_bytes=planned_bytes)
    while budget.planned_bytes < planned_bytes:
        lack = planned_bytes - budget.planned_bytes
        more = max(1, int(lack / (1 - like.margin)))
        budget = replace(budget, memory_bytes=budget.memory_bytes + more)
    return budget


def _answer(problem: Problem, policy: Policy, *, or_minimum: bool) -> tuple[Problem, Answer]:
    """Return the policy's answer and the problem that it answers, which may have more memory."""
    if peak(problem.step) > problem.planned_bytes:
        _require_sane_rates(problem)
    try:
        return problem, answer_that_fits(problem, policy)
    except CannotFitError:
        if not or_minimum:
            raise
        return least_found(problem, policy)


def _require_sane_rates(problem: Problem) -> None:
    """Refuse rates so low, or a latency so long, that times would not stay within 64 bits."""
    ssd, link = problem.hardware.ssd, problem.hardware.host_link
    rates = [link.to_gpu_bytes_per_s, link.to_host_bytes_per_s]
    rates += [ssd.read_bytes_per_s, ssd.write_bytes_per_s] if problem.ssd else []
    nbytes = 2 * sum(problem.step.tensors[i.tensor].nbytes for i in problem.intervals)
    if nbytes * 10**9 > _LONGEST_NS // 4 * min(rates):
        msg = f"at {min(rates)} bytes per second {nbytes} bytes take longer than can be counted"
        raise UsageError(msg, hint="write a rate as `6.7GB/s`")
    if 2 * len(problem.intervals) * ssd.latency_ns > _LONGEST_NS // 4:
        msg = f"transfers that wait {ssd.latency_ns} ns each take longer than can be counted"
        raise UsageError(msg, hint="check the latency of the SSD: it is in ns")


def _trace_ref(trace: Trace, step: Step, sha256: str) -> TraceRef:
    names = tuple(dict.fromkeys(op.name for op in step.ops))
    number = {name: index for index, name in enumerate(names)}
    new = [0] * len(step.ops)
    for tensor in step.tensors:
        if tensor.alloc_op is not None:
            new[tensor.alloc_op] += tensor.size // GRANULE
    workspace = [-(-op.workspace_bytes // GRANULE) for op in step.ops]
    most = max(*new, *workspace)
    if most > _MOST_GRANULES:
        msg = f"an op takes {most * GRANULE} bytes, more than a plan can say"
        raise BadInputError(msg, hint="record the trace again")
    program = Program(
        names=names,
        name=tuple(number[op.name] for op in step.ops),
        signature=trace.info.signatures,
        new_granules=tuple(new),
        workspace_granules=tuple(workspace),
    )
    info = trace.info
    return TraceRef(sha256, info.fingerprint, info.steps, len(step.ops), program)


def _planned_tensors(step: Step, actions: tuple[Action, ...]) -> tuple[PlannedTensor, ...]:
    moved = {action.tensor for action in actions}
    return tuple(
        PlannedTensor(t.id, t.nbytes, t.name, t.kind, t.first_op, t.slot)
        for t in step.tensors
        if t.id in moved
    )


def _prediction(problem: Problem, answer: Answer, bound_ns: int | None) -> Prediction:
    actions = answer.actions
    simulation = simulate_actions(problem.step, problem.hardware, actions)
    if simulation.step_ns > _LONGEST_NS:
        msg = f"a step would take {simulation.step_ns} ns, more than a plan can say"
        raise InfeasibleError(msg, hint="check the rates, and that they are bytes per second")
    known = [ns for ns in (bound_ns, answer.bound_ns) if ns is not None]
    if not known:
        known = [lower_bound_ns(problem, known_ns=simulation.step_ns)]
    moved = traffic(problem.step, actions)
    return Prediction(
        ideal_ns=simulation.ideal_ns,
        step_ns=simulation.step_ns,
        stall_ns=simulation.stall_ns,
        lower_bound_ns=min(max(known), simulation.step_ns),
        peak_bytes=planned_peak(problem.step, actions),
        ssd=moved[SSD],
        host=moved[HOST],
    )
