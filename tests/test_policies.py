"""Every policy, whatever the trace: a plan that the checker accepts, or an honest error."""

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from problems import FAST, checked_plan, offloads
from traces import MIB, hardware, traces, training_trace

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Controls
from teraio.planner.policies import POLICIES
from teraio.planner.problem import CannotFitError
from teraio.planner.simulate import simulate
from teraio.planner.step import load_step, peak
from teraio.profiler.errors import InfeasibleError

NAMES = ("teraio2025", "g10", "zero-offload", "zero-infinity", "ssdtrain", "flexgen", "lru", "keep")
ANY_TENSOR = {"teraio2025", "g10", "flexgen", "lru"}
"""Policies that may move any tensor, and so meet every budget that can be met."""


def test_each_has_its_name_on_the_command_line():
    assert set(NAMES) <= set(POLICIES)


@examples(60)
@given(
    traces(),
    hardware(),
    st.sampled_from(NAMES),
    st.sampled_from([0, 0.1, 0.4, 0.8]),
    st.sampled_from([0, 8 * MIB, 1 << 40]),
)
def test_any_trace_gets_a_right_plan_or_an_honest_error(trace, channels, name, share, host_bytes):
    try:
        plan = checked_plan(trace, name, share, hardware=channels, host_bytes=host_bytes)
    except CannotFitError as error:
        assert name not in ANY_TENSOR, error
        assert error.hint
    else:
        assert plan.policy.name == name


@examples(30)
@given(traces(), st.sampled_from(NAMES), st.sampled_from(["ssd", "host", "writes", "rule"]))
def test_the_users_rules_hold_for_every_policy(trace, name, rule):
    controls = {
        "ssd": Controls(tiers=("ssd",)),
        "host": Controls(tiers=("host",)),
        "writes": Controls(ssd_write_bytes=6 * MIB),
        "rule": Controls(never_ssd=("activation",)),
    }[rule]
    try:
        plan = checked_plan(trace, name, 0.4, host_bytes=16 * MIB, controls=controls)
    except InfeasibleError:
        return
    assert {action.to for action in offloads(plan)} <= set(controls.tiers)
    assert rule != "writes" or plan.prediction.ssd.to_tier_bytes <= 6 * MIB


@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_and_the_same_answer_twice(name):
    trace = training_trace(5, micro_batches=2)
    try:
        plan, again = (
            checked_plan(trace, name, 0.9, host_bytes=1 << 30, hardware=FAST) for _ in range(2)
        )
    except CannotFitError:
        assert name in {"keep", "ssdtrain"}, "what those may move is not enough"
        return
    assert plan.actions
    assert plan.actions == again.actions
    assert simulate(load_step(trace), plan).stall_ns == plan.prediction.stall_ns


def test_keep_moves_nothing_and_says_what_it_lacks():
    trace = training_trace(3)
    memory = peak(load_step(trace))
    assert checked_plan(trace, "keep", 1).actions == ()
    options = {"sha256": "0" * 64, "hardware": ASSUMED, "policy": "keep"}
    with pytest.raises(CannotFitError, match=r"with nothing moved, the step needs 36\.00 MiB"):
        make_plan(trace, memory_bytes=memory - 512, **options)
