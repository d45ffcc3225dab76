"""From a trace, a budget and the hardware to a checked plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from teraio.planner.absence import planned_peak
from teraio.planner.bound import lower_bound_ns
from teraio.planner.check import check_plan
from teraio.planner.minimum import Least, least_memory
from teraio.planner.plan import (
    HOST,
    SSD,
    Action,
    Budget,
    Hardware,
    Offload,
    Plan,
    PlannedTensor,
    Prediction,
    Prefetch,
    Program,
    TraceRef,
    Traffic,
)
from teraio.planner.plan import Policy as PolicyRecord
from teraio.planner.policies import AUTO, POLICIES
from teraio.planner.problem import Answer, Policy, Problem
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import Step, demand, idle_intervals, load_step
from teraio.planner.units import format_bytes
from teraio.profiler.errors import InfeasibleError, UsageError
from teraio.profiler.trace import GRANULE

if TYPE_CHECKING:
    from teraio.planner.step import StepTensor
    from teraio.profiler.trace import Trace

MIN_TENSOR_BYTES: Final = 1 << 20
"""Smaller tensors stay: TERAIO's planner, too, leaves those under about 2 MB alone, and at 1 MiB
a PCIe 4.0 drive spends over a tenth of a transfer on its latency."""

_TENSORS_NAMED: Final = 5


def make_plan(
    trace: Trace,
    *,
    sha256: str,
    memory_bytes: int,
    host_bytes: int = 0,
    hardware: Hardware,
    policy: str = "auto",
    or_minimum: bool = False,
    min_tensor_bytes: int = MIN_TENSOR_BYTES,
    margin: float = 0.0,
) -> Plan:
    """Return a plan, proven by the checker, for the last complete step of `trace`.

    `sha256` is that of the trace's file. A step that fits the budget gets a plan without
    actions. With `or_minimum` a budget below the least possible memory is raised to it.

    Raises UsageError for an unknown policy or a margin outside 0 to 1, and InfeasibleError,
    which says what the least possible memory is and what sets it, for a budget below that.
    """
    policy = AUTO if policy == "auto" else policy
    _require_usable(policy, host_bytes, margin)
    step = load_step(trace)
    intervals = tuple(idle_intervals(step, min_tensor_bytes))
    least = least_memory(step, intervals)
    budget = Budget(memory_bytes, host_bytes, margin)
    if budget.planned_bytes < least.nbytes:
        possible = _with_planned_bytes(least.nbytes, host_bytes, margin)
        if not or_minimum:
            raise _infeasible(step, budget, least, possible, min_tensor_bytes)
        budget = possible
    problem = Problem(step, intervals, budget.planned_bytes, host_bytes, hardware)
    started = time.perf_counter()
    answer = _answer(problem, POLICIES[policy])
    seconds = time.perf_counter() - started
    record = PolicyRecord(policy, seconds, answer.solver, answer.status, answer.gap)
    plan = Plan(
        trace=_trace_ref(trace, step, sha256),
        hardware=hardware,
        budget=budget,
        policy=record,
        prediction=_prediction(problem, answer.actions),
        tensors=_planned_tensors(step, answer.actions),
        actions=answer.actions,
    )
    check_plan(step, plan)
    return plan


def _require_usable(policy: str, host_bytes: int, margin: float) -> None:
    if policy not in POLICIES:
        msg = f"unknown policy: `{policy}`"
        raise UsageError(msg, hint=f"the policies are {', '.join(['auto', *POLICIES])}")
    if not 0 <= margin < 1:
        msg = f"the margin must be a share from 0 to less than 1: {margin}"
        raise UsageError(msg, hint="a margin of `5%` keeps the plan that much below the budget")
    if host_bytes < 0:
        msg = f"host memory must not be negative: {host_bytes} bytes"
        raise UsageError(msg, hint="leave it out to use no host memory")


def _with_planned_bytes(planned_bytes: int, host_bytes: int, margin: float) -> Budget:
    """Return the budget that leaves `planned_bytes` after its margin."""
    budget = Budget(planned_bytes, host_bytes, margin)
    while budget.planned_bytes < planned_bytes:
        lack = planned_bytes - budget.planned_bytes
        more = max(1, int(lack / (1 - margin)))
        budget = Budget(budget.memory_bytes + more, host_bytes, margin)
    return budget


def _infeasible(
    step: Step, budget: Budget, least: Least, possible: Budget, min_tensor_bytes: int
) -> InfeasibleError:
    op = step.ops[least.op]
    where = f"`{op.name}`" + (f" in `{op.module}`" if op.module else "")
    lines = [
        f"no plan fits {_both(budget.memory_bytes)}"
        + (f" less a margin of {budget.margin:.1%}" if budget.margin else "")
        + f": the least possible is {_both(possible.memory_bytes)}",
        f"op {least.op}, {where}, sets it: alive there are",
    ]
    lines += [
        f"  {format_bytes(tensor.size)} {tensor.kind} {tensor.name or f'tensor {tensor.id}'}"
        for tensor in least.tensors[:_TENSORS_NAMED]
    ]
    rest = least.tensors[_TENSORS_NAMED:]
    if rest:
        lines.append(f"  {format_bytes(sum(t.size for t in rest))} in {len(rest)} smaller tensors")
    if least.workspace_bytes:
        lines.append(f"  {format_bytes(least.workspace_bytes)} workspace of the op")
    idle = sum(t.size for t in least.tensors if t.size < min_tensor_bytes and _idle(t, least.op))
    if idle:
        smallest = f"tensors under {format_bytes(min_tensor_bytes)}, which stay (`--min-tensor`)"
        lines.append(f"{format_bytes(idle)} of it is idle there in {smallest}")
    hint = f"take `--memory {possible.memory_bytes}`, or `--or-minimum` for just that"
    return InfeasibleError("\n".join(lines), hint=hint)


def _idle(tensor: StepTensor, op: int) -> bool:
    return all(use.op != op for use in tensor.uses)


def _both(nbytes: int) -> str:
    return f"{nbytes} bytes ({format_bytes(nbytes)})"


def _answer(problem: Problem, policy: Policy) -> Answer:
    if int(demand(problem.step).max()) <= problem.planned_bytes:
        return Answer(())
    return policy(problem)


def _trace_ref(trace: Trace, step: Step, sha256: str) -> TraceRef:
    names = tuple(dict.fromkeys(op.name for op in step.ops))
    number = {name: index for index, name in enumerate(names)}
    new = [0] * len(step.ops)
    for tensor in step.tensors:
        if tensor.alloc_op is not None:
            new[tensor.alloc_op] += tensor.size // GRANULE
    program = Program(
        names=names,
        name=tuple(number[op.name] for op in step.ops),
        signature=trace.info.signatures,
        new_granules=tuple(new),
        workspace_granules=tuple(-(-op.workspace_bytes // GRANULE) for op in step.ops),
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


def _prediction(problem: Problem, actions: tuple[Action, ...]) -> Prediction:
    simulation = simulate_actions(problem.step, problem.hardware, actions)
    return Prediction(
        ideal_ns=simulation.ideal_ns,
        step_ns=simulation.step_ns,
        stall_ns=simulation.stall_ns,
        lower_bound_ns=lower_bound_ns(problem),
        peak_bytes=planned_peak(problem.step, actions),
        ssd=_traffic(problem.step, actions, SSD),
        host=_traffic(problem.step, actions, HOST),
    )


def _traffic(step: Step, actions: tuple[Action, ...], tier: str) -> Traffic:
    nbytes = {tensor.id: tensor.nbytes for tensor in step.tensors}
    offloads = [a for a in actions if isinstance(a, Offload) and a.to == tier]
    prefetches = [a for a in actions if isinstance(a, Prefetch) and a.source == tier]
    return Traffic(
        to_tier_bytes=sum(nbytes[a.tensor] for a in offloads if a.write),
        to_gpu_bytes=sum(nbytes[a.tensor] for a in prefetches),
        dropped_bytes=sum(nbytes[a.tensor] for a in offloads if not a.write),
    )
