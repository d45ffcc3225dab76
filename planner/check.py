"""The checker: proves a plan right or says what is wrong with it.

It shares no code with the policies: only the step and the plan as data. It works in Python
integers, which do not overflow. Positions are unwrapped: op k of the next step is k + n_ops.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from teraio.planner.controls import control_fault
from teraio.planner.edf import lateness
from teraio.planner.plan import HOST, SSD, Action, Offload, Plan, Prefetch, Traffic
from teraio.profiler.errors import TeraioError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from teraio.planner.step import Step, StepTensor

_PERIODS = 3
"""Steps laid end to end to check transfers: windows shorter than a step cross one boundary, and
the middle one of three has a step on either side."""


class PlanCheckError(TeraioError):
    """A plan breaks one of the rules that every plan keeps."""


class _Move(NamedTuple):
    """An offload and the prefetch that ends it: `after` < `gone` <= `back` < `needed`.

    The tensor is absent at ops `gone` to `back`.
    """

    tensor: StepTensor
    offload: Offload
    prefetch: Prefetch
    after: int
    gone: int
    back: int
    needed: int


class _Job(NamedTuple):
    """A transfer that must lie between two times, in ns from the start of a step."""

    release_ns: int
    deadline_ns: int
    nbytes: int
    action: Action


def check_plan(step: Step, plan: Plan) -> None:
    """Check that `plan` is right for `step`, which repeats without end.

    It keeps the rules of `check_rules`; the transfers fit their windows once those are widened
    by the predicted stall; and the predicted peak and traffic are exact.

    Raises PlanCheckError with the op, the bytes and the action.
    """
    moves, most = _check_rules(step, plan)
    if most != plan.prediction.peak_bytes:
        _fail(f"the peak is {most} bytes, not the predicted {plan.prediction.peak_bytes}")
    _check_prediction(step, plan, moves)
    _check_transfers(step, plan, moves)


def check_rules(step: Step, plan: Plan) -> None:
    """Check the rules that hold at any rates, whatever `plan` predicts.

    Each offload has its prefetch, in turn; at each op the resident bytes and the workspace fit
    the budget; no access meets an absent tensor; a drop finds a current copy; host bytes fit the
    host budget; pinned tensors stay; and tensors move only as the plan's controls allow.

    Raises PlanCheckError with the op, the bytes and the action.
    """
    _check_rules(step, plan)


def _check_rules(step: Step, plan: Plan) -> tuple[list[_Move], int]:
    """Return the moves and the most bytes an op needs."""
    if plan.trace.ops != len(step.ops):
        _fail(f"the plan is for {plan.trace.ops} ops, the step has {len(step.ops)}")
    for earlier, later in pairwise(plan.actions):
        if later.after_op < earlier.after_op:
            _fail("the actions are not in op order", later)
    moves = _moves(step, plan)
    _check_listed(step, plan, moves)
    fault = control_fault(step, plan)
    if fault:
        _fail(fault)
    for tensor_moves in moves.values():
        _check_copies(tensor_moves)
    everything = [move for tensor_moves in moves.values() for move in tensor_moves]
    most = _check_memory(step, plan, everything)
    _check_host(step, plan, moves)
    return everything, most


def _fail(complaint: str, action: Action | None = None) -> NoReturn:
    what = "" if action is None else f" ({_words(action)})"
    msg = f"the plan is wrong: {complaint}{what}"
    raise PlanCheckError(msg, hint="make the plan again; if it still fails, report the trace")


def _words(action: Action) -> str:
    if isinstance(action, Offload):
        kind = "offload" if action.write else "drop"
        span = f"after op {action.after_op}, gone by op {action.gone_by_op}"
        return f"{kind} of tensor {action.tensor} to {action.to} {span}"
    span = f"after op {action.after_op}, needed by op {action.needed_by_op}"
    return f"prefetch of tensor {action.tensor} from {action.source} {span}"


def _moves(step: Step, plan: Plan) -> dict[int, list[_Move]]:
    """Pair each offload with its prefetch, tensor by tensor, in op order."""
    by_id = {tensor.id: tensor for tensor in step.tensors}
    offloads: defaultdict[int, list[Offload]] = defaultdict(list)
    prefetches: defaultdict[int, list[Prefetch]] = defaultdict(list)
    for action in plan.actions:
        _check_action(action, by_id, len(step.ops))
        if isinstance(action, Offload):
            offloads[action.tensor].append(action)
        else:
            prefetches[action.tensor].append(action)
    return {
        identity: _paired(by_id[identity], offloads[identity], prefetches[identity], len(step.ops))
        for identity in dict.fromkeys(action.tensor for action in plan.actions)
    }


def _check_action(action: Action, by_id: dict[int, StepTensor], n_ops: int) -> None:
    if isinstance(action, Offload):
        tier, until = action.to, action.gone_by_op
    else:
        tier, until = action.source, action.needed_by_op
    if tier not in (SSD, HOST):
        _fail(f"there is no tier `{tier}`", action)
    if not (0 <= action.after_op < n_ops and 0 <= until < n_ops):
        _fail(f"an op is not one of the step's {n_ops}", action)
    if action.tensor not in by_id:
        _fail("the step has no such tensor", action)
    if by_id[action.tensor].pinned:
        _fail("the tensor is pinned to the device", action)


def _paired(
    tensor: StepTensor, offloads: list[Offload], prefetches: list[Prefetch], n_ops: int
) -> list[_Move]:
    offloads.sort(key=lambda action: action.after_op)
    prefetches.sort(key=lambda action: action.after_op)
    if len(offloads) != len(prefetches):
        extra: Action = offloads[0] if offloads else prefetches[0]
        _fail(f"{len(offloads)} offloads and {len(prefetches)} prefetches of one tensor", extra)
    starts = [action.after_op for action in prefetches]
    moves = []
    for offload in offloads:
        position = bisect_right(starts, offload.after_op)
        prefetch = prefetches[position % len(prefetches)]
        moves.append(_move(tensor, offload, prefetch, n_ops))
    after = [*(move.after for move in moves[1:]), moves[0].after + n_ops]
    for position, (move, again) in enumerate(zip(moves, after, strict=True)):
        if again < move.needed:
            later = moves[(position + 1) % len(moves)].offload
            _fail(f"the tensor is away until op {move.needed % n_ops}", later)
    return moves


def _move(tensor: StepTensor, offload: Offload, prefetch: Prefetch, n_ops: int) -> _Move:
    after = offload.after_op
    gone = _unwrapped(offload.gone_by_op, after, n_ops)
    back = _unwrapped(prefetch.after_op, after, n_ops)
    needed = _unwrapped(prefetch.needed_by_op, back, n_ops)
    following = _next_use(tensor, after, n_ops)
    if following is None or not (tensor.alloc_op or 0) <= after:
        _fail("the tensor is not alive, or not used again in its life", offload)
    if offload.to != prefetch.source:
        _fail(f"the tensor was offloaded to {offload.to}", prefetch)
    if not gone <= back:
        _fail(f"the tensor is not gone before op {gone % n_ops}", prefetch)
    if needed > following:
        _fail(f"op {following % n_ops} would find the tensor absent", prefetch)
    return _Move(tensor, offload, prefetch, after, gone, back, needed)


def _unwrapped(op: int, later_than: int, n_ops: int) -> int:
    """Return the first position after `later_than` at which `op` runs."""
    return later_than + 1 + (op - later_than - 1) % n_ops


def _next_use(tensor: StepTensor, after: int, n_ops: int) -> int | None:
    ops = [use.op for use in tensor.uses]
    position = bisect_right(ops, after)
    if position < len(ops):
        return ops[position]
    return ops[0] + n_ops if ops and tensor.alloc_op is None and tensor.free_op is None else None


def _check_listed(step: Step, plan: Plan, moves: Iterable[int]) -> None:
    by_id = {tensor.id: tensor for tensor in step.tensors}
    listed = [entry.id for entry in plan.tensors]
    if sorted(listed) != sorted(moves):
        _fail("the tensors listed are not those that move, each once")
    for entry in plan.tensors:
        tensor = by_id[entry.id]
        if (entry.nbytes, entry.first_op, entry.slot) != (
            tensor.nbytes,
            tensor.first_op,
            tensor.slot,
        ):
            _fail(f"tensor {entry.id} is listed with other bytes or another place than the step's")


def _check_copies(moves: list[_Move]) -> None:
    """Check that each drop finds a current copy in its tier."""
    tensor = moves[0].tensor
    writes = [use.op for use in tensor.uses if use.writes]
    persistent = tensor.alloc_op is None and tensor.free_op is None
    for tier in (SSD, HOST):
        there = [move for move in moves if move.offload.to == tier]
        for position, move in enumerate(there):
            if move.offload.write:
                continue
            if position == 0 and not persistent:
                _fail("nothing was written before the drop", move.offload)
            before = there[position - 1]
            if _written_between(writes, before.after, move.after, wraps=position == 0):
                _fail("the copy is not current", move.offload)


def _written_between(writes: list[int], after: int, until: int, *, wraps: bool) -> bool:
    """Return whether an op after `after` and up to `until` writes, perhaps over the step's end."""
    if not wraps:
        return bisect_right(writes, until) > bisect_right(writes, after)
    return bisect_right(writes, after) < len(writes) or bisect_right(writes, until) > 0


def _check_memory(step: Step, plan: Plan, moves: list[_Move]) -> int:
    """Check that every op fits the budget; return the most bytes that one needs."""
    n_ops = len(step.ops)
    change = [0] * (n_ops + 1)
    for tensor in step.tensors:
        change[tensor.alloc_op or 0] += tensor.size
        change[n_ops if tensor.free_op is None else tensor.free_op + 1] -= tensor.size
    for move in moves:
        _add(change, move.gone, move.back + 1, -move.tensor.size)
    resident = list(accumulate(change[:n_ops]))
    used = [b + op.workspace_bytes for b, op in zip(resident, step.ops, strict=True)]
    most = max(used)
    limit = plan.budget.planned_bytes
    if most > limit:
        _fail(
            f"op {used.index(most)} needs {most} bytes, {most - limit} over the budget of {limit}"
        )
    return most


def _check_host(step: Step, plan: Plan, moves: dict[int, list[_Move]]) -> None:
    """Check the host bytes: a copy takes them from its offload until its last prefetch is there."""
    n_ops = len(step.ops)
    change = [0] * (n_ops + 1)
    for tensor_moves in moves.values():
        there = [move for move in tensor_moves if move.offload.to == HOST]
        for move, later in zip(there, [*there[1:], *there[:1]], strict=True):
            again = later.after + (0 if later.after > move.after else n_ops)
            end = move.needed if later.offload.write else again + 1
            _add(change, move.after + 1, end, move.tensor.size)
    used = list(accumulate(change[:n_ops]))
    most = max(used)
    limit = plan.budget.host_bytes
    if most > limit:
        _fail(
            f"{most} host bytes at op {used.index(most)}, {most - limit} over the {limit} allowed"
        )


def _add(change: list[int], first: int, end: int, nbytes: int) -> None:
    """Add `nbytes` at positions `first` to `end` - 1, at most a step, wrapped to one step."""
    n_ops = len(change) - 1
    first, length = first % n_ops, end - first
    change[first] += nbytes
    change[min(first + length, n_ops)] -= nbytes
    if first + length > n_ops:
        change[0] += nbytes
        change[first + length - n_ops] -= nbytes


def _check_prediction(step: Step, plan: Plan, moves: list[_Move]) -> None:
    told = plan.prediction
    if told.ideal_ns != step.ops[-1].start_ns + step.ops[-1].duration_ns:
        _fail(f"the ideal step is not {told.ideal_ns} ns")
    if told.stall_ns < 0 or told.step_ns != told.ideal_ns + told.stall_ns:
        _fail(f"a step of {told.step_ns} ns is not the ideal one and {told.stall_ns} ns of stall")
    if told.lower_bound_ns > told.step_ns:
        _fail(f"the step is predicted below its lower bound of {told.lower_bound_ns} ns")
    for tier, claimed in ((SSD, told.ssd), (HOST, told.host)):
        there = [move for move in moves if move.offload.to == tier]
        true = Traffic(
            to_tier_bytes=sum(m.tensor.nbytes for m in there if m.offload.write),
            to_gpu_bytes=sum(m.tensor.nbytes for m in there),
            dropped_bytes=sum(m.tensor.nbytes for m in there if not m.offload.write),
        )
        if claimed != true:
            _fail(f"the {tier} traffic is {true}, not the predicted {claimed}")


def _check_transfers(step: Step, plan: Plan, moves: list[_Move]) -> None:
    """Check that each channel can make its transfers within the predicted stall.

    In a steady run each step takes the ideal time and the stall S. In the run, op k of step q
    starts no earlier than q (ideal + S) + its ideal start, and no later than that + S. A
    transfer therefore lies inside its ideal window with S added at the end, so if even the
    preemptive earliest-deadline-first schedule, which is optimal, misses such a window then no
    run keeps to the prediction. In each direction the bytes of both tiers cross the host link:
    an SSD transfer is no faster than that, and the link by itself must be able to carry both.
    """
    ssd, link = plan.hardware.ssd, plan.hardware.host_link
    jobs = _jobs(step, plan, moves)
    for out, ssd_rate, rate in (
        (True, ssd.write_bytes_per_s, link.to_host_bytes_per_s),
        (False, ssd.read_bytes_per_s, link.to_gpu_bytes_per_s),
    ):
        to_ssd, to_host = jobs[SSD, out], jobs[HOST, out]
        slower = min(ssd_rate, rate)
        _check_channel(plan, to_ssd, [ssd.latency_ns + _ns(job, slower) for job in to_ssd], 1)
        _check_channel(plan, to_host, [_ns(job, rate) for job in to_host], 1)
        if to_ssd and to_host:
            both = to_ssd + to_host
            _check_channel(plan, both, [job.nbytes * 10**9 for job in both], rate)


def _ns(job: _Job, rate: int) -> int:
    return -(-job.nbytes * 10**9 // rate)


def _jobs(step: Step, plan: Plan, moves: list[_Move]) -> dict[tuple[str, bool], list[_Job]]:
    """Return the transfers of each tier, out of the device and into it."""
    jobs: dict[tuple[str, bool], list[_Job]] = {
        (tier, out): [] for tier in (SSD, HOST) for out in (True, False)
    }
    for move in moves:
        tier, nbytes = move.offload.to, move.tensor.nbytes
        window = _window(step, plan, move.back, move.needed)
        jobs[tier, False].append(_Job(*window, nbytes, move.prefetch))
        if move.offload.write:
            window = _window(step, plan, move.after, move.gone)
            jobs[tier, True].append(_Job(*window, nbytes, move.offload))
    return jobs


def _window(step: Step, plan: Plan, after: int, until: int) -> tuple[int, int]:
    n_ops, told = len(step.ops), plan.prediction
    turn, first = divmod(after, n_ops)
    crossed, last = divmod(until, n_ops)
    deadline = step.ops[last].start_ns + (crossed - turn) * told.step_ns + told.stall_ns
    return step.ops[first].start_ns + step.ops[first].duration_ns, deadline


def _check_channel(plan: Plan, jobs: list[_Job], durations: list[int], ticks: int) -> None:
    """Run preemptive earliest-deadline-first over a few periods; every job must be in time.

    Each job takes its duration, in ticks, of which there are `ticks` in a ns.
    """
    period = plan.prediction.step_ns * ticks
    work = sum(durations)
    if work > period:
        too_much = f"{work // ticks} ns of transfers on one channel"
        _fail(f"{too_much} in a step of {plan.prediction.step_ns} ns", jobs[0].action)
    rows = sorted(
        (job.release_ns * ticks, job.deadline_ns * ticks, index) for index, job in enumerate(jobs)
    )
    turns = range(0, _PERIODS * period, period)
    late = lateness(((a + turn, b + turn, k) for turn in turns for a, b, k in rows), durations)
    if late is not None:
        too_late, index = late
        words = f"a transfer is {-(-too_late // ticks)} ns later than predicted"
        _fail(words, jobs[index].action)
