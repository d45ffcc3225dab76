"""The checker against a replay by hand: one op after the other, one state for each tensor."""

import re
from dataclasses import dataclass, replace
from itertools import product

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner.absence import planned_peak
from teraio.planner.check import PlanCheckError, check_plan
from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.minimum import least_memory
from teraio.planner.plan import (
    NO_CONTROLS,
    Budget,
    Controls,
    Hardware,
    HostLink,
    Offload,
    PlannedTensor,
    Prediction,
    Prefetch,
    Ssd,
    Traffic,
)
from teraio.planner.step import idle_intervals, load_step, peak

SLOW = Hardware(Ssd(10**9, 10**9, 0), HostLink(2 * 10**9, 2 * 10**9), {"ssd": "given"})


class WrongPlanError(Exception):
    pass


def require(condition, words):
    if not condition:
        raise WrongPlanError(words)


@dataclass
class State:
    """Of one tensor: where it is, until which op it is on its way, and which copies are current."""

    where: str = "here"
    tier: str = ""
    until: int = -1
    copies: frozenset[str] = frozenset()


def replay(step, plan):
    """Replay four steps, the first two only to find the state at a step's start."""
    tensors = {t.id: t for t in step.tensors}
    for action in plan.actions:
        require(action.tensor in tensors, "unknown tensor")
        require(not tensors[action.tensor].pinned, "pinned")
    never_written = {i for i, t in tensors.items() if not any(u.writes for u in t.uses)}
    states = {
        i: State(copies=frozenset({"ssd", "host"} if i in never_written else ()))
        for i, t in tensors.items()
        if t.persistent
    }
    memory = host = 0
    for strict in (False, False, True, True):
        for k in range(len(step.ops)):
            for t in step.tensors:
                if t.alloc_op == k or (t.alloc_op is None and not t.persistent and k == 0):
                    states[t.id] = State()
            arrive(states, k, strict)
            touch(tensors, states, k, strict)
            used = sum(tensors[i].size for i, s in states.items() if s.where != "away")
            memory = max(memory, used + step.ops[k].workspace_bytes) if strict else 0
            held = sum(t.size for t in step.tensors if in_host(plan, t, states.get(t.id), k))
            host = max(host, held) if strict else 0
            begin(plan, states, k, strict)
            last = k + 1 == len(step.ops)
            for t in step.tensors:
                if t.free_op == k or (t.free_op is None and not t.persistent and last):
                    require(not strict or states[t.id].where == "here", "freed while away")
                    del states[t.id]
    return memory, host


def arrive(states, k, strict):
    for state in states.values():
        if state.until == k:
            if state.where == "leaving":
                state.where, state.until = "away", -1
            elif state.where == "arriving":
                state.where, state.until = "here", -1
            else:
                require(not strict, "nothing is on its way")


def touch(tensors, states, k, strict):
    for identity, state in states.items():
        for use in tensors[identity].uses:
            if use.op == k:
                require(not strict or state.where == "here", "access to an absent tensor")
                if use.writes:
                    state.copies = frozenset()


def begin(plan, states, k, strict):
    for action in plan.actions:
        if action.after_op != k:
            continue
        state = states.get(action.tensor)
        if state is None:
            raise WrongPlanError("not alive")
        if isinstance(action, Offload):
            require(not strict or state.where == "here", "offload of an absent tensor")
            require(action.write or not strict or action.to in state.copies, "no current copy")
            state.where, state.tier, state.until = "leaving", action.to, action.gone_by_op
            state.copies |= {action.to}
        else:
            require(not strict or state.where == "away", "prefetch of a tensor that is here")
            require(not strict or state.tier == action.source, "prefetch from another tier")
            state.where, state.until = "arriving", action.needed_by_op


def in_host(plan, tensor, state, k):
    offloads = [
        a for a in plan.actions
        if isinstance(a, Offload) and a.tensor == tensor.id and a.to == "host"
    ]  # fmt: skip
    if not offloads:
        return False
    if state is not None and state.where != "here" and state.tier == "host":
        return True
    following = [a for a in offloads if a.after_op >= k] or offloads
    return not following[0].write and (tensor.persistent or state is not None) and (
        tensor.persistent or "host" in state.copies
    )  # fmt: skip


def transfers_fit(step, plan):
    """Hall's condition on every pair of a release and a deadline, over three steps."""
    told = plan.prediction
    nbytes = {t.id: t.nbytes for t in step.tensors}
    ssd, link = plan.hardware.ssd, plan.hardware.host_link
    channels = {}
    for action in plan.actions:
        if isinstance(action, Offload):
            tier, until, out = action.to, action.gone_by_op, True
            if not action.write:
                continue
        else:
            tier, until, out = action.source, action.needed_by_op, False
        rate = {
            ("ssd", True): ssd.write_bytes_per_s,
            ("ssd", False): ssd.read_bytes_per_s,
            ("host", True): link.to_host_bytes_per_s,
            ("host", False): link.to_gpu_bytes_per_s,
        }[tier, out]
        duration = -(-nbytes[action.tensor] * 10**9 // rate)
        duration += ssd.latency_ns if tier == "ssd" else 0
        wrapped = until <= action.after_op
        release = step.ops[action.after_op].end_ns
        deadline = step.ops[until].start_ns + told.stall_ns + wrapped * told.step_ns
        channels.setdefault((tier, out), []).append((release, deadline, duration))
    return all(hall(jobs, told.step_ns) for jobs in channels.values())


def hall(jobs, period):
    if sum(job[2] for job in jobs) > period:
        return False
    jobs = [(r + q * period, d + q * period, ns) for q in range(3) for r, d, ns in jobs]
    return all(
        sum(ns for r, d, ns in jobs if r >= begin and d <= end) <= end - begin
        for begin, end in product({r for r, _, _ in jobs}, {d for _, d, _ in jobs})
        if any(r >= begin and d <= end for r, d, _ in jobs)
    )


def traffic(step, plan, tier):
    nbytes = {t.id: t.nbytes for t in step.tensors}
    out = [a for a in plan.actions if isinstance(a, Offload) and a.to == tier]
    back = [a for a in plan.actions if isinstance(a, Prefetch) and a.source == tier]
    return Traffic(
        sum(nbytes[a.tensor] for a in out if a.write),
        sum(nbytes[a.tensor] for a in back),
        sum(nbytes[a.tensor] for a in out if not a.write),
    )


def keeps_to_controls(step, plan):
    rules, tensors = plan.controls, {t.id: t for t in step.tensors}
    for action in plan.actions:
        tensor, tier = tensors[action.tensor], getattr(action, "to", getattr(action, "source", ""))
        origin = tensor.name
        if not origin and tensor.alloc_op is not None:
            op = step.ops[tensor.alloc_op]
            origin = f"{op.name} in {op.module}"
        words = (origin, f"{tensor.kind}:{origin}")
        kept = any(re.search(pattern, word) for pattern in rules.keep for word in words)
        off = any(re.search(pattern, word) for pattern in rules.never_ssd for word in words)
        if tier not in rules.tiers or kept or (off and tier == "ssd"):
            return False
        if tensor.size < rules.min_tensor_bytes:
            return False
    most = rules.ssd_write_bytes
    return most is None or traffic(step, plan, "ssd").to_tier_bytes <= most


def verdict_by_hand(step, plan):
    try:
        tensors = {t.id: t for t in step.tensors}
        require(
            sorted(p.id for p in plan.tensors) == sorted({a.tensor for a in plan.actions}), "listed"
        )
        require(all(p.nbytes == tensors[p.id].nbytes for p in plan.tensors), "listed bytes")
        memory, host = replay(step, plan)
        told = plan.prediction
        require(keeps_to_controls(step, plan), "controls")
        require(memory <= plan.budget.planned_bytes, "memory")
        require(host <= plan.budget.host_bytes, "host memory")
        require(memory == told.peak_bytes, "peak")
        require(told.step_ns == told.ideal_ns + told.stall_ns, "times")
        require(told.ssd == traffic(step, plan, "ssd"), "ssd traffic")
        require(told.host == traffic(step, plan, "host"), "host traffic")
        require(told.lower_bound_ns <= told.step_ns, "bound")
        require(transfers_fit(step, plan), "transfers")
    except WrongPlanError as error:
        return str(error)
    return ""


def verdict(step, plan):
    try:
        check_plan(step, plan)
    except PlanCheckError as error:
        return str(error)
    return ""


@st.composite
def planned(draw):
    """A trace's step and a right plan for it."""
    trace = draw(traces(max_ops=14, max_tensors=7))
    step = load_step(trace)
    least = least_memory(step, idle_intervals(step, MIB)).nbytes
    share = draw(st.sampled_from([0, 0.1, 0.3]))
    plan = make_plan(
        trace,
        sha256="",
        memory_bytes=max(1, least + int(share * (peak(step) - least))),
        host_bytes=draw(st.sampled_from([0, 20 * MIB])),
        hardware=draw(hardware()),
        policy="greedy",
    )
    return step, replace(plan, controls=NO_CONTROLS)


RULES = st.sampled_from(
    [
        NO_CONTROLS,
        Controls(),
        Controls(tiers=("ssd",), min_tensor_bytes=0),
        Controls(tiers=("host",), min_tensor_bytes=0),
        Controls(keep=(r"layers\.[0-5]$",), min_tensor_bytes=0),
        Controls(never_ssd=("^activation:$", "op3"), min_tensor_bytes=0),
        Controls(ssd_write_bytes=0, min_tensor_bytes=0),
        Controls(ssd_write_bytes=9 * MIB, min_tensor_bytes=5 * MIB),
    ]
)


@st.composite
def mutated(draw):
    """A right plan with up to three changes, its prediction perhaps made to fit again."""
    step, plan = draw(planned())
    for _ in range(draw(st.integers(1, 3))):
        plan = draw(mutation(step, plan))
    plan = replace(plan, actions=tuple(sorted(plan.actions, key=lambda a: a.after_op)))
    if draw(st.booleans()):
        plan = repaired(step, plan, draw(st.sampled_from([0, 10**7, 10**10])))
    return step, replace(plan, controls=draw(RULES))


@st.composite
def mutation(draw, step, plan):
    kinds = ["budget", "host", "peak", "stall", "listed"] + ["action"] * 15 * bool(plan.actions)
    kind = draw(st.sampled_from(kinds))
    if kind == "budget":
        return replace(
            plan, budget=replace(plan.budget, memory_bytes=draw(st.integers(0, 64 * MIB)))
        )
    if kind == "host":
        return replace(plan, budget=replace(plan.budget, host_bytes=draw(st.integers(0, 20 * MIB))))
    told = plan.prediction
    if kind == "peak":
        return replace(plan, prediction=replace(told, peak_bytes=told.peak_bytes + 512))
    if kind == "stall":
        stall = draw(st.integers(0, max(1, told.stall_ns)))
        told = replace(told, stall_ns=stall, step_ns=told.ideal_ns + stall)
        return replace(plan, prediction=told)
    if kind == "listed":
        return replace(plan, tensors=plan.tensors[1:])
    position = draw(st.integers(0, len(plan.actions) - 1))
    action = plan.actions[position]
    op = st.integers(0, len(step.ops) - 1)
    near = st.integers(-2, 2)
    changes = [
        (),
        (action, action),
        (replace(action, after_op=draw(op)),),
        (replace(action, after_op=(action.after_op + draw(near)) % len(step.ops)),),
        (replace(action, tensor=draw(st.sampled_from([t.id for t in step.tensors]))),),
    ]
    if isinstance(action, Offload):
        later = (action.gone_by_op + draw(near)) % len(step.ops)
        changes += [
            (replace(action, write=not action.write),),
            (replace(action, to="host"),),
            (replace(action, gone_by_op=later),),
        ]
    else:
        changes += [
            (replace(action, needed_by_op=draw(op)),),
            (replace(action, source="host"),),
        ]
    new = draw(st.sampled_from(changes))
    actions = plan.actions[:position] + new + plan.actions[position + 1 :]
    if draw(st.booleans()):
        actions = all_to_host(actions, action.tensor)
    return replace(plan, actions=actions)


def near_budget(plan):
    return st.integers(-2 * MIB, 2 * MIB).map(lambda d: max(0, plan.budget.memory_bytes + d))


def all_to_host(actions, tensor):
    return tuple(
        a if a.tensor != tensor
        else replace(a, to="host") if isinstance(a, Offload) else replace(a, source="host")
        for a in actions
    )  # fmt: skip


def repaired(step, plan, stall):
    by_id = {t.id: t for t in step.tensors}
    moved = {a.tensor for a in plan.actions}
    listed = [t for t in plan.tensors if t.id in moved]
    if {t.id for t in listed} != moved:
        template = plan.tensors[0] if plan.tensors else None
        if template is None:
            return plan
        listed = [
            replace(template, id=i, nbytes=by_id[i].nbytes, first_op=by_id[i].first_op,
                    slot=by_id[i].slot)
            for i in moved
        ]  # fmt: skip
    told = plan.prediction
    try:
        memory, host = replay(step, plan)
    except WrongPlanError:
        return plan
    stall = max(stall, told.stall_ns)
    told = replace(
        told,
        peak_bytes=memory,
        stall_ns=stall,
        step_ns=told.ideal_ns + stall,
        ssd=traffic(step, plan, "ssd"),
        host=traffic(step, plan, "host"),
    )
    budget = replace(
        plan.budget,
        memory_bytes=max(memory, plan.budget.memory_bytes),
        host_bytes=max(host, plan.budget.host_bytes),
    )
    return replace(plan, prediction=told, tensors=tuple(listed), budget=budget)


@examples(40)
@given(planned())
def test_right_plans_are_right_by_hand_too(case):
    step, plan = case
    assert verdict_by_hand(step, plan) == ""
    assert verdict(step, plan) == ""


@examples(100)
@given(mutated())
def test_changed_plans_are_judged_as_by_hand(case):
    step, plan = case
    by_hand, checked = verdict_by_hand(step, plan), verdict(step, plan)
    assert bool(by_hand) == bool(checked), (by_hand, checked)


def least_of(step):
    return least_memory(step, idle_intervals(step, MIB)).nbytes


@pytest.fixture(scope="module")
def sample():
    """A plan that moves tensor 1 twice after one write, and tensor 2, which is never written."""
    trace = make_trace(
        12,
        [
            T(1, 4 * MIB, "0w 5r 10r", alloc=0, free=11),
            T(2, 4 * MIB, "1r 11r"),
            *(T(10 + k, 8 * MIB, f"{k}w", alloc=k, free=k) for k in (3, 8)),
        ],
        durations=10_000_000,
    )
    step = load_step(trace)
    plan = make_plan(trace, sha256="", memory_bytes=least_of(step), hardware=SLOW)
    plan = replace(plan, controls=NO_CONTROLS)
    offloads = [(a.tensor, a.write) for a in plan.actions if isinstance(a, Offload)]
    assert sorted(offloads) == [(1, False), (1, True), (2, False)]
    return step, plan


def changed(plan, moved, kind, nth=0, **changes):
    position = [k for k, a in enumerate(plan.actions) if a.tensor == moved and isinstance(a, kind)][
        nth
    ]
    actions = list(plan.actions)
    actions[position] = replace(actions[position], **changes)
    return replace(plan, actions=tuple(sorted(actions, key=lambda a: a.after_op)))


def told(plan, **changes):
    return replace(plan, prediction=replace(plan.prediction, **changes))


WRONG = {
    "op 3 needs .* over the budget": lambda p: changed(p, 2, Prefetch, after_op=2),
    "4194304 over the budget": lambda p: replace(p, budget=replace(p.budget, memory_bytes=4 * MIB)),
    "op 5 would find the tensor absent": lambda p: changed(p, 1, Prefetch, needed_by_op=6),
    "nothing was written before": lambda p: changed(p, 1, Offload, write=False),
    "3 ops, the step has 12": lambda p: replace(p, trace=replace(p.trace, ops=3)),
    "not one of the step's 12": lambda p: changed(p, 1, Offload, gone_by_op=12),
    "no tier `tape`": lambda p: changed(p, 1, Offload, to="tape"),
    "no such tensor": lambda p: changed(p, 1, Offload, tensor=99),
    "was offloaded to host": lambda p: changed(p, 1, Offload, to="host"),
    "not used again in its life": lambda p: changed(p, 1, Offload, nth=1, after_op=10),
    "offloads and 2 prefetches": lambda p: replace(
        p, actions=tuple(a for a in p.actions if not (a.tensor == 1 and a.after_op == 0))
    ),
    "not in op order": lambda p: replace(p, actions=p.actions[::-1]),
    "listed are not those": lambda p: replace(p, tensors=p.tensors[:1]),
    "another place": lambda p: replace(
        p, tensors=tuple(replace(t, slot=t.slot + 1) for t in p.tensors)
    ),
    "the peak is": lambda p: told(p, peak_bytes=p.prediction.peak_bytes - 1),
    "the ideal step": lambda p: told(p, ideal_ns=1),
    "of stall": lambda p: told(p, stall_ns=p.prediction.stall_ns + 1),
    "lower bound": lambda p: told(p, lower_bound_ns=p.prediction.step_ns + 1),
    "the ssd traffic": lambda p: told(p, ssd=replace(p.prediction.ssd, to_gpu_bytes=0)),
    "the host traffic": lambda p: told(p, host=Traffic(1, 1, 1)),
}


RULED = {
    "tensor 1 moves to or from ssd, which is not to be used": Controls(tiers=("host",)),
    "tensor 2 is to be kept": Controls(keep=("^activation:$",)),
    "tensor 1 is never to go to the SSD": Controls(never_ssd=(r"aten\.op0 in layers\.0",)),
    "is smaller than the least": Controls(min_tensor_bytes=4 * MIB + 1),
    "4194304 bytes are written to the SSD, 1 over": Controls(ssd_write_bytes=4 * MIB - 1),
}


@pytest.mark.parametrize("words", RULED)
def test_each_control_that_is_broken_is_named(sample, words):
    step, plan = sample
    with pytest.raises(PlanCheckError, match=words):
        check_plan(step, replace(plan, controls=RULED[words]))


def test_what_just_keeps_to_the_controls_is_right(sample):
    step, plan = sample
    check_plan(
        step,
        replace(
            plan,
            controls=Controls(
                tiers=("ssd",),
                keep=("layers.1",),
                never_ssd=("^parameter:",),
                min_tensor_bytes=4 * MIB,
                ssd_write_bytes=4 * MIB,
            ),
        ),
    )


@pytest.mark.parametrize("words", WRONG)
def test_each_rule_names_what_is_wrong(sample, words):
    step, plan = sample
    with pytest.raises(PlanCheckError, match=words):
        check_plan(step, WRONG[words](plan))


def test_a_pinned_tensor_may_not_move(sample):
    step, plan = sample
    pinned = tuple(replace(t, pinned=t.id == 2) for t in step.tensors)
    with pytest.raises(PlanCheckError, match="pinned"):
        check_plan(replace(step, tensors=pinned), plan)


def test_a_copy_is_not_current_after_a_write(sample):
    step, plan = sample
    uses = (step.tensors[0].uses[0], step.tensors[0].uses[1]._replace(writes=True))
    first = replace(step.tensors[0], uses=(*uses, step.tensors[0].uses[2]))
    with pytest.raises(PlanCheckError, match="not current"):
        check_plan(replace(step, tensors=(first, *step.tensors[1:])), plan)


def test_more_transfers_than_the_channel_has_time_for(sample):
    step, plan = sample
    slow = replace(plan.hardware, ssd=replace(plan.hardware.ssd, read_bytes_per_s=10**6))
    with pytest.raises(PlanCheckError, match="on one channel"):
        check_plan(step, replace(plan, hardware=slow))


def test_a_transfer_that_cannot_be_in_time(sample):
    step, plan = sample
    assert plan.prediction.stall_ns == 0
    tight = changed(plan, 2, Prefetch, after_op=10)
    with pytest.raises(PlanCheckError, match="ns later than predicted"):
        check_plan(step, tight)


def test_host_bytes_count_while_a_drop_still_needs_them(sample):
    step, plan = sample
    actions = tuple(
        a if a.tensor == 2
        else replace(a, to="host") if isinstance(a, Offload) else replace(a, source="host")
        for a in plan.actions
    )  # fmt: skip
    plan = replace(plan, actions=actions)
    plan = told(plan, ssd=traffic(step, plan, "ssd"), host=traffic(step, plan, "host"))
    enough = replace(plan, budget=replace(plan.budget, host_bytes=4 * MIB))
    check_plan(step, enough)
    with pytest.raises(PlanCheckError, match="4194304 host bytes at op 1, 1 over"):
        check_plan(step, replace(plan, budget=replace(plan.budget, host_bytes=4 * MIB - 1)))


def test_a_large_step_is_checked_in_exact_integers():
    huge = T(1, 1 << 61, "0r 5r")
    trace = make_trace(7, [huge, T(2, 1 << 61, "3w", alloc=3, free=3), T(3, 1 << 61)])
    step = load_step(trace)
    with pytest.raises(PlanCheckError, match=f"needs {3 << 61} bytes"):
        check_plan(step, replace(empty_plan(step), budget=Budget(1 << 62, 0, 0.0)))


def empty_plan(step):
    plan = make_plan(training_trace(2), sha256="", memory_bytes=1 << 40, hardware=ASSUMED)
    return replace(plan, trace=replace(plan.trace, ops=len(step.ops)))


def both_tiers(stall_ns, link=10**9, ssd=10**10):
    """Two tensors of 6 MB, one in each tier, that come back during op 10, of 10 ms."""
    tensors = [T(k, 6_000_000, "0r 11r") for k in (1, 2)]
    trace = make_trace(12, tensors, durations=10_000_000)
    step = load_step(trace)
    hardware = Hardware(Ssd(ssd, ssd, 0), HostLink(link, link), {})
    plan = make_plan(trace, sha256="", memory_bytes=1 << 30, hardware=hardware)
    tiers = ((1, "ssd"), (2, "host"))
    actions = [
        *(Offload(k, tier, 0, 1, write=False) for k, tier in tiers),
        *(Prefetch(k, tier, 9, 11) for k, tier in tiers),
    ]
    moved = Traffic(to_tier_bytes=0, to_gpu_bytes=6_000_000, dropped_bytes=6_000_000)
    ideal = step.period_ns
    return step, replace(
        plan,
        budget=Budget(1 << 30, 1 << 30, 0.0),
        controls=NO_CONTROLS,
        actions=tuple(actions),
        tensors=tuple(PlannedTensor(k, 6_000_000, "", "", 0, k - 1) for k in (1, 2)),
        prediction=Prediction(
            ideal, ideal + stall_ns, stall_ns, ideal, planned_peak(step, actions), moved, moved
        ),
    )


def test_the_link_must_carry_both_tiers():
    # Alone each takes 6 ms at the link's rate. Together they take 12 ms.
    check_plan(*both_tiers(2_000_000))
    with pytest.raises(PlanCheckError, match="a transfer is 1 ns later"):
        check_plan(*both_tiers(1_999_999))
    check_plan(*both_tiers(0, link=1_200_000_000))
    with pytest.raises(PlanCheckError, match="a transfer is 1 ns later"):
        check_plan(*both_tiers(0, link=1_199_999_999))


def test_the_ssd_is_no_faster_than_the_link():
    step, plan = both_tiers(0, link=1_200_000_000)
    only = tuple(a for a in plan.actions if a.tensor == 1)
    none = Traffic(0, 0, 0)
    plan = replace(told(plan, host=none), actions=only, tensors=plan.tensors[:1])
    plan = told(plan, peak_bytes=planned_peak(step, only))
    check_plan(step, plan)
    slow = replace(plan, hardware=replace(plan.hardware, host_link=HostLink(10**9, 599_999_999)))
    with pytest.raises(PlanCheckError, match="a transfer is 1 ns later"):
        check_plan(step, slow)
