"""Plans under controls, and input at the edge of what can be planned for."""

import io
from dataclasses import replace

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner.check import check_plan
from teraio.planner.controls import matched
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.make import make_plan
from teraio.planner.plan import Controls, Offload, Prefetch
from teraio.planner.plan_file import read_plan, write_plan
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.step import load_step, peak
from teraio.profiler.errors import BadInputError, InfeasibleError, UsageError


def plan_for(trace, memory_bytes, **options):
    options = {"hardware": ASSUMED, "sha256": "0" * 64, "policy": "greedy"} | options
    return make_plan(trace, memory_bytes=memory_bytes, **options)


def as_read(plan):
    sink = io.StringIO()
    write_plan(plan, sink)
    sink.seek(0)
    return read_plan(sink)


def tiers_used(plan):
    return {a.to if isinstance(a, Offload) else a.source for a in plan.actions}


@pytest.mark.parametrize(
    ("tiers", "host_bytes", "recorded"),
    [
        (("ssd", "host"), 0, ("ssd",)),
        (("ssd", "host"), 1 << 30, ("ssd", "host")),
        (("host", "ssd"), 1 << 30, ("ssd", "host")),
        (("ssd",), 1 << 30, ("ssd",)),
        (("host",), 1 << 30, ("host",)),
    ],
)
def test_only_the_tiers_that_may_be_used_are(tiers, host_bytes, recorded):
    trace = training_trace(6)
    memory = peak(load_step(trace)) // 2
    slow = with_rates(ASSUMED, ssd_read=10**9, ssd_write=10**9)
    rules = Controls(tiers=tiers)
    plan = plan_for(trace, memory, host_bytes=host_bytes, hardware=slow, controls=rules)
    assert plan.controls == replace(rules, tiers=recorded)
    assert plan.budget.host_bytes == (host_bytes if "host" in recorded else 0)
    assert plan.actions
    assert tiers_used(plan) <= set(recorded)


def test_what_is_kept_stays_and_what_may_not_wear_the_drive_goes_to_host_memory():
    trace = training_trace(6)
    step = load_step(trace)
    rules = Controls(keep=(r"layers\.[01]\.weight$",), never_ssd=("^optimizer_state:",))
    plan = plan_for(trace, 24 * MIB, host_bytes=1 << 30, controls=rules)
    kept = {step.tensors[i].id for i in matched(step, rules.keep)}
    states = {tensor.id for tensor in step.tensors if tensor.kind == "optimizer_state"}
    assert len(kept) == 2
    moved = {action.tensor for action in plan.actions}
    assert not moved & kept
    assert moved & states
    assert not {a.tensor for a in plan.actions if isinstance(a, Offload) and a.to == "ssd"} & states
    assert plan.controls == rules


def test_a_limit_on_what_is_written_to_the_ssd():
    trace = training_trace(6)
    slow = with_rates(ASSUMED, host_link=10**9)
    free = plan_for(trace, 44 * MIB, hardware=slow, host_bytes=1 << 30)
    limit = free.prediction.ssd.to_tier_bytes - MIB
    assert limit > 0
    rules = Controls(ssd_write_bytes=limit)
    held = plan_for(trace, 44 * MIB, hardware=slow, host_bytes=1 << 30, controls=rules)
    assert held.prediction.ssd.to_tier_bytes <= limit
    assert held.prediction.host.to_tier_bytes > 0


def test_a_limit_of_zero_leaves_drops():
    trace = make_trace(6, [T(1, 4 * MIB, "0r 5r"), T(2, 4 * MIB, "2w 3r", alloc=2, free=3)])
    plan = plan_for(trace, 4 * MIB, controls=Controls(ssd_write_bytes=0))
    assert plan.prediction.ssd.dropped_bytes == 4 * MIB


def test_the_least_counts_what_is_kept_and_says_so():
    parts = [
        T(1, 4 * MIB, "0r 5r", kind="parameter", name="embed.weight"),
        T(2, 2 * MIB, "1r 4r", kind="parameter", name="head.weight"),
        T(3, 5 * MIB, "2w 3r", alloc=2, free=3),
        T(4, MIB // 2, "0r 5r", name="embed.mask"),
    ]
    trace = make_trace(6, parts)
    assert plan_for(trace, 5 * MIB + MIB // 2).actions
    kept = Controls(keep=("embed",))
    with pytest.raises(InfeasibleError) as caught:
        plan_for(trace, 9 * MIB, controls=kept)
    message = str(caught.value)
    assert "the least possible is 9961472 bytes" in message
    assert "4.00 MiB of it is idle there in tensors that are kept (`--keep`)" in message
    assert "512.00 KiB of it is idle there in tensors under 1.00 MiB" in message
    assert "--never-ssd" not in message
    assert plan_for(trace, 9961472, controls=kept).actions


def test_the_least_counts_what_has_no_tier_and_says_so():
    trace = make_trace(6, [T(1, 2 * MIB, "0r 5r", name="head"), T(2, 5 * MIB, "2w", 2, 2)])
    off = Controls(never_ssd=("head",))
    with pytest.raises(InfeasibleError, match=r"2\.00 MiB of it .*`--never-ssd`.* no host memory"):
        plan_for(trace, 6 * MIB, controls=off)
    assert tiers_used(plan_for(trace, 6 * MIB, controls=off, host_bytes=2 * MIB)) == {"host"}


def test_the_least_counts_host_memory_that_is_full():
    trace = make_trace(
        7, [T(1, 4 * MIB, "0r 6r"), T(2, 2 * MIB, "1r 5r"), T(3, 4 * MIB, "3w", 3, 3)]
    )
    rules = Controls(tiers=("host",))
    with pytest.raises(InfeasibleError, match=r"2\.00 MiB that may only go to host memory"):
        plan_for(trace, 4 * MIB, host_bytes=4 * MIB, controls=rules)
    least = plan_for(trace, 4 * MIB, host_bytes=4 * MIB, controls=rules, or_minimum=True)
    assert least.budget.memory_bytes == 6 * MIB
    assert tiers_used(least) == {"host"}


def test_a_tensor_larger_than_the_budget_is_named():
    trace = make_trace(6, [T(1, 9 * MIB, "0r 4r", name="big"), T(2, MIB, "2r")])
    with pytest.raises(InfeasibleError, match=r"9\.00 MiB activation big"):
        plan_for(trace, 4 * MIB)


def test_a_step_of_one_op():
    trace = make_trace(1, [T(1, 4 * MIB, "0r")])
    assert plan_for(trace, 4 * MIB).actions == ()
    with pytest.raises(InfeasibleError, match="op 0"):
        plan_for(trace, 4 * MIB - 1)


def test_sizes_that_can_just_be_counted():
    large = 1 << 61
    trace = make_trace(8, [T(k, large, f"{k}r") for k in range(3)])
    plan = plan_for(trace, large)
    assert plan.prediction.peak_bytes == large
    assert as_read(plan).actions == plan.actions


def test_sizes_and_times_that_cannot_be_counted():
    large = 1 << 61
    trace = make_trace(8, [T(k, large, f"{k}r") for k in range(3)])
    with pytest.raises(UsageError, match="at 1 bytes per second"):
        plan_for(trace, large, hardware=with_rates(ASSUMED, ssd_read=1))
    with pytest.raises(BadInputError, match="together"):
        plan_for(make_trace(8, [T(k, large, f"{k}r") for k in range(4)]), large)
    with pytest.raises(BadInputError, match="more than a plan can say"):
        plan_for(make_trace(8, [T(1, large, "0w", 0, 0)]), large)


def test_the_problem_has_the_time_limit_and_the_step_is_not_loaded_twice():
    asked = []

    def answering(problem):
        asked.append(problem)
        return Answer(())

    trace = training_trace(6)
    step = load_step(trace)
    with pytest.raises(CannotFitError):
        plan_for(trace, 40 * MIB, time_limit_s=7.5, step=step, answering=answering)
    assert asked[0].time_limit_s == 7.5
    assert asked[0].step is step


RULES = st.builds(
    Controls,
    tiers=st.sampled_from([("ssd", "host"), ("ssd",)]),
    keep=st.sampled_from([(), (), (r"layers\.1\d?$",)]),
    never_ssd=st.sampled_from([(), ("op[0-3]",), ("^activation:$",)]),
    min_tensor_bytes=st.sampled_from([0, MIB, 4 * MIB]),
    ssd_write_bytes=st.sampled_from([None, None, 0, 8 * MIB]),
)


@examples(30)
@given(
    traces(),
    hardware(),
    st.sampled_from([0, 0.2, 0.5, 0.8]),
    st.sampled_from([0, 4 * MIB, 64 * MIB]),
    RULES,
)
def test_any_controls_get_a_right_plan_or_an_error_that_explains(
    trace, channels, share, host_bytes, rules
):
    step = load_step(trace)
    memory = max(1, int(share * peak(step)))
    options = {"hardware": channels, "host_bytes": host_bytes, "controls": rules}
    plan = plan_for(trace, memory, or_minimum=True, **options)
    check_plan(step, plan)
    limit = rules.ssd_write_bytes
    assert limit is None or plan.prediction.ssd.to_tier_bytes <= limit
    assert not any(isinstance(a, Prefetch) and a.source not in rules.tiers for a in plan.actions)
    assert as_read(plan).controls == plan.controls
    if plan.budget.memory_bytes > memory:
        with pytest.raises(InfeasibleError) as caught:
            plan_for(trace, memory, **options)
        assert "--or-minimum" in caught.value.hint
