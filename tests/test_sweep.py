"""Sweeps: more of anything never costs time, and every row says where its plan is from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from example_counts import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner.hardware import ASSUMED, with_rates, with_tbw
from teraio.planner.make import make_plan
from teraio.planner.plan import NO_CONTROLS, Offload, Prefetch
from teraio.planner.points import Axes
from teraio.planner.policies import POLICIES
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import load_step, peak
from teraio.planner.sweep import sweep
from teraio.profiler.errors import UsageError

GB = 10**9
PEAK = 72 * MIB
SLOW = with_rates(ASSUMED, ssd_read=GB, ssd_write=GB)


def swept(trace, axes, **options):
    return sweep(trace, axes, **{"sha256": "0" * 64, "hardware": SLOW, **options})


def no_more(one, other):
    return all(a <= b for a, b in zip(one.point.amounts, other.point.amounts, strict=True))


def require_order(rows):
    """Check that no row is slower, or less certain, than one with no more of anything."""
    for one, other in product(rows, rows):
        if no_more(one, other) and one.outcome:
            assert other.outcome, "what fits in less fits in more"
            assert other.outcome.step_ns <= one.outcome.step_ns
            assert other.outcome.lower_bound_ns <= one.outcome.lower_bound_ns


def test_rows_are_in_the_order_of_the_points():
    axes = Axes((60 * MIB, 30 * MIB), host_bytes=(0, 16 * MIB), drives=(4, 1))
    found = swept(training_trace(6), axes, policy="g10")
    assert (found.ideal_ns, found.peak_bytes, found.policy) == (15_000_000, PEAK, "g10")
    assert [
        (r.point.memory_bytes, r.point.host_bytes, r.point.hardware.ssd.drives) for r in found.rows
    ] == list(product((60 * MIB, 30 * MIB), (0, 16 * MIB), (4, 1)))
    require_order(found.rows)
    steps = [row.outcome.step_ns for row in found.rows]
    assert len(set(steps)) > 2


def test_one_point_is_the_plan_for_it():
    trace = training_trace(6)
    row = swept(trace, Axes((40 * MIB,)), policy="lru", margin=0.05).rows[0]
    plan = make_plan(
        trace, sha256="0" * 64, memory_bytes=40 * MIB, hardware=SLOW, policy="lru", margin=0.05
    )
    assert row.outcome.step_ns == plan.prediction.step_ns
    assert row.outcome.ssd == plan.prediction.ssd
    assert row.outcome.peak_bytes <= 38 * MIB
    assert (row.plan_of, row.at_its_rates, row.reason, row.least_bytes) == (None, False, "", None)


def test_points_that_cannot_be_say_what_could():
    found = swept(training_trace(6), Axes((MIB, 40 * MIB, 11 * MIB)))
    low, fits, lower = found.rows
    assert low.outcome is lower.outcome is None
    assert low.least_bytes == lower.least_bytes == 12 * MIB
    assert "no plan fits 1048576 bytes" in low.reason
    assert fits.outcome
    assert fits.least_bytes is None


def test_wear_counts_the_drives_of_the_point():
    rated = with_tbw(SLOW, 10**15)
    axes = Axes((40 * MIB,), drives=(1, 2), ssd_read=(GB, 2 * GB), ssd_write=(GB, 2 * GB))
    rows = swept(training_trace(6), axes, hardware=rated, policy="g10").rows
    same = {  # two drives of 1 GB/s each, and one of 2 GB/s
        row.point.hardware.ssd.drives: row
        for row in rows
        if row.point.amounts[2:4] == (2 * GB, 2 * GB)
    }
    assert same[1].outcome.step_ns == same[2].outcome.step_ns
    assert same[2].outcome.ssd_days == 2 * same[1].outcome.ssd_days


def test_a_policy_that_does_worse_with_more_takes_the_plan_for_less(monkeypatch):
    def moody(problem):
        if problem.planned_bytes > 40 * MIB:
            msg = "not today"
            raise CannotFitError(msg)
        return POLICIES["greedy" if problem.planned_bytes <= 30 * MIB else "lru"](problem)

    monkeypatch.setitem(POLICIES, "moody", moody)
    found = swept(training_trace(6), Axes((30 * MIB, 40 * MIB, 50 * MIB)), policy="moody")
    require_order(found.rows)
    least, middle, most = found.rows
    assert least.plan_of is None
    assert middle.plan_of == most.plan_of == least.point
    assert most.outcome.ssd == least.outcome.ssd
    assert not most.at_its_rates


def crossing():
    """A plan that a little more bandwidth delays by 9 ms: a large prefetch that is needed late
    then begins just before an op waits for a small one, and a transfer is not interrupted.
    """
    mb = 10**6
    tensors = [T(1, 2 * mb, "0r 43r"), T(2, 20 * mb, "0r 90r"), T(3, mb, "0r 42r")]
    trace = make_trace(100, tensors, durations=10**6, workspace={35: 10 * mb})
    actions = (
        *(Offload(tensor, "ssd", 0, 30, write=True) for tensor in (1, 2, 3)),
        *(Prefetch(t, "ssd", 40, need) for t, need in ((1, 43), (2, 90), (3, 42))),
    )
    return trace, actions


def test_hardware_that_a_plan_would_be_slower_on(monkeypatch):
    trace, actions = crossing()
    base = replace(ASSUMED, ssd=replace(ASSUMED.ssd, write_bytes_per_s=GB, latency_ns=0))
    slow, fast = (with_rates(base, ssd_read=rate) for rate in (2 * GB, 21 * GB // 10))
    step = load_step(trace)
    times = [simulate_actions(step, channels, actions).step_ns for channels in (slow, fast)]
    assert times[1] > times[0] + 9_000_000
    monkeypatch.setitem(POLICIES, "fixed", lambda _problem: Answer(actions))
    axes = Axes((26 * MIB,), ssd_read=(2 * GB, 21 * GB // 10, 100 * GB))
    found = swept(trace, axes, hardware=base, policy="fixed", controls=NO_CONTROLS)
    require_order(found.rows)
    own, kept, best = found.rows
    assert not own.at_its_rates
    assert (kept.plan_of, kept.at_its_rates) == (own.point, True)
    assert kept.outcome.step_ns == own.outcome.step_ns == times[0]
    assert not best.at_its_rates
    assert best.outcome.step_ns < times[0]


def test_points_are_counted():
    told = []
    axes = Axes((30 * MIB, 40 * MIB), drives=(1, 2))
    swept(training_trace(3), axes, on_point=lambda done, count: told.append((done, count)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_what_is_not_a_row_is_raised():
    trace = training_trace(3)
    with pytest.raises(UsageError, match="unknown policy"):
        swept(trace, Axes((PEAK,)), policy="best")
    with pytest.raises(UsageError, match="no value"):
        swept(trace, Axes(()))


@examples(20)
@given(
    traces(max_ops=16, max_tensors=8),
    hardware(),
    st.sampled_from(["greedy", "lru", "g10", "teraio2025"]),
    st.sampled_from([(0,), (0, 8 * MIB)]),
)
def test_more_of_anything_is_never_slower(trace, channels, policy, host_bytes):
    step = load_step(trace)
    most = peak(step)
    memory = sorted({max(int(most * share), 1) for share in (0.5, 0.75, 0.95)})
    read = channels.ssd.read_bytes_per_s
    axes = Axes(tuple(memory), host_bytes, ssd_read=(read, read * 5 // 4), ssd_write=(None, 3 * GB))
    assume(channels.ssd.write_bytes_per_s != 3 * GB)
    found = swept(trace, axes, hardware=channels, policy=policy)
    require_order(found.rows)
    for row in found.rows:
        if row.outcome:
            assert found.ideal_ns <= row.outcome.lower_bound_ns <= row.outcome.step_ns
            assert row.outcome.peak_bytes <= row.point.memory_bytes
            assert row.plan_of is None or no_more(replace(row, point=row.plan_of), row)
        else:
            assert row.reason
