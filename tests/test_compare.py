"""Every policy side by side: the rows, their order and what they are measured by."""

from __future__ import annotations

import pytest
from example_counts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from traces import MIB, hardware, traces, training_trace

from teraio.planner import compare as module
from teraio.planner.bound import lower_bound_ns
from teraio.planner.compare import COMPARED, compare, require_policies
from teraio.planner.controls import problem_of
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.make import make_plan
from teraio.planner.plan import Budget, Controls
from teraio.planner.policies import POLICIES
from teraio.planner.simulate import simulate
from teraio.planner.step import load_step, peak
from teraio.profiler.errors import UsageError

SLOW = with_rates(ASSUMED, ssd_read=10**9, ssd_write=10**9)
PEAK = 72 * MIB


def compared(trace, **options):
    options = {"memory_bytes": PEAK // 2, "hardware": SLOW, "time_limit_s": 2.0} | options
    return compare(trace, sha256="0" * 64, **options)


def test_rows_are_the_plans_of_the_policies():
    trace = training_trace(6)
    step = load_step(trace)
    found = compared(trace, host_bytes=1 << 30, step=step)
    assert {row.policy for row in found.rows} == set(COMPARED) == set(POLICIES) - {"keep"}
    with_plan = [row for row in found.rows if row.outcome]
    assert len(with_plan) >= 5
    for row in with_plan:
        plan = make_plan(
            trace, sha256="0" * 64, memory_bytes=PEAK // 2, hardware=SLOW, host_bytes=1 << 30,
            policy=row.policy,
        )  # fmt: skip
        cost, told = plan.prediction, row.outcome
        assert (told.step_ns, told.peak_bytes) == (cost.step_ns, cost.peak_bytes)
        assert (told.ssd, told.host) == (cost.ssd, cost.host)
        assert told.ssd_write_bytes == cost.ssd.to_tier_bytes
        assert told.slowdown == cost.step_ns / step.period_ns
        assert told.stall == simulate(step, plan).stall
        assert told.gap == cost.step_ns / found.lower_bound_ns - 1


def test_one_bound_for_all_and_the_fastest_first():
    trace = training_trace(6)
    found = compared(trace)
    problem = problem_of(load_step(trace), Budget(PEAK // 2, 0, 0), SLOW, Controls())
    proven = lower_bound_ns(problem)
    assert found.lower_bound_ns >= proven > load_step(trace).period_ns, "ilp may prove more"
    assert compared(trace, policies=("lru",)).lower_bound_ns == proven
    outcomes = [row.outcome for row in found.rows]
    steps = [outcome.step_ns for outcome in outcomes if outcome]
    assert steps == sorted(steps)
    assert steps[0] >= found.lower_bound_ns
    assert steps[0] < steps[-1]
    assert {outcome.lower_bound_ns for outcome in outcomes if outcome} == {found.lower_bound_ns}
    lacking = [row for row in found.rows if row.outcome is None]
    assert found.rows[-len(lacking) :] == tuple(lacking)
    assert all(row.reason and "\n" not in row.reason for row in lacking)
    assert "zero-offload" in {row.policy for row in lacking}, "there is no host memory"


def test_ideal_is_the_step_with_nothing_moved():
    ideal = compared(training_trace(6), policies=("lru",)).ideal
    assert (ideal.policy, ideal.outcome.step_ns) == ("keep", 30 * 500_000)
    assert (ideal.outcome.slowdown, ideal.outcome.peak_bytes) == (1, PEAK)
    assert ideal.outcome.ssd.to_tier_bytes == ideal.outcome.ssd.to_gpu_bytes == 0


def test_step_that_fits_needs_no_policy():
    found = compared(training_trace(6), memory_bytes=PEAK)
    assert {row.outcome.slowdown for row in found.rows} == {1}
    assert found.lower_bound_ns == found.ideal.outcome.step_ns


def test_budget_below_the_least():
    trace = training_trace(6)
    found = compared(trace, memory_bytes=MIB)
    assert found.least_bytes == 12 * MIB
    assert found.lower_bound_ns is None
    assert not any(row.outcome for row in found.rows)
    assert all("least possible is 12582912 bytes" in row.reason for row in found.rows)
    quick = ("greedy", "lru", "g10", "teraio2025")
    raised = compared(trace, memory_bytes=MIB, or_minimum=True, policies=quick)
    assert raised.budget.memory_bytes == 12 * MIB
    assert raised.least_bytes is None
    assert {row.policy: row.outcome for row in raised.rows}["greedy"].peak_bytes <= 12 * MIB


def test_with_little_host_memory_the_least_is_only_a_floor():
    trace = training_trace(6)
    scarce = {"host_bytes": 16 * MIB, "controls": Controls(tiers=("host",))}
    found = compared(trace, memory_bytes=20 * MIB, **scarce)
    assert found.least_is_floor
    assert all(f"at least {found.least_bytes} bytes" in row.reason for row in found.rows)
    raised = compared(trace, memory_bytes=20 * MIB, or_minimum=True, **scarce)
    assert raised.budget.memory_bytes >= found.least_bytes
    assert any(row.outcome for row in raised.rows)


def test_margin_and_wear_reach_the_rows():
    worn = compared(training_trace(6), margin=0.1, policies=("auto",)).rows[0]
    assert worn.policy == "auto"
    assert worn.outcome.policy in POLICIES
    assert worn.outcome.peak_bytes <= PEAK // 2 * 0.9
    assert worn.outcome.ssd_days is None


def test_policies_are_announced_in_order():
    told = []
    compared(training_trace(3), policies=("lru", "greedy"), on_policy=told.append)
    assert told == ["lru", "greedy"]


def test_a_policy_that_crashes_is_not_a_row(monkeypatch):
    def broken(_problem):
        raise ZeroDivisionError

    monkeypatch.setitem(POLICIES, "lru", broken)
    with pytest.raises(ZeroDivisionError):
        compared(training_trace(6), policies=("greedy", "lru"))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "no policy is named"),
        (("lru", "best"), "unknown policy: `best`"),
        (("lru", "g10", "lru"), "`lru` is named twice"),
        (("auto", "auto"), "is named twice"),
    ],
)
def test_names_that_are_refused(names, words):
    with pytest.raises(UsageError, match=words) as raised:
        require_policies(names)
    assert raised.value.hint
    with pytest.raises(UsageError):
        compared(training_trace(3), policies=names)


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), hardware(), st.sampled_from([0.5, 0.7, 0.9, 1]), st.sampled_from([0, 16 * MIB]))
def test_any_trace(trace, channels, share, host_bytes):
    step = load_step(trace)
    memory = max(int(peak(step) * share), 1)
    found = module.compare(
        trace,
        sha256="0" * 64,
        memory_bytes=memory,
        host_bytes=host_bytes,
        hardware=channels,
        time_limit_s=0.5,
    )
    outcomes = [row.outcome for row in found.rows if row.outcome]
    assert (found.lower_bound_ns is None) == (not outcomes)
    if found.least_bytes is not None:
        assert not outcomes
        assert memory < found.least_bytes <= peak(step)
    for outcome in outcomes:
        assert outcome.peak_bytes <= memory
        assert step.period_ns <= outcome.lower_bound_ns == found.lower_bound_ns <= outcome.step_ns
        stall = outcome.stall
        waits = stall.late_prefetch_ns + stall.bandwidth_ns + stall.memory_ns
        assert waits == outcome.step_ns - step.period_ns
