"""The lower bound: exact where that can be worked out by hand, and never above any plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from problems import problem_of, problems
from traces import MIB, T, make_trace, training_trace

from teraio.planner import bound, solver
from teraio.planner.absence import planned_peak
from teraio.planner.bound import lower_bound_ns
from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.planner.policies import POLICIES
from teraio.planner.problem import CannotFitError, Problem
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import idle_intervals, load_step, peak

MS = 1_000_000
FAST = ("greedy", "teraio2025", "g10", "ssdtrain", "flexgen", "lru")
SLOW = Hardware(Ssd(4 * MIB * 1000, 2 * MIB * 1000, 0), HostLink(10**12, 10**12), {})
"""Reads 4 MiB and writes 2 MiB in a ms; the link does not matter."""


def away_at_op_1(nbytes: int = 8 * MIB):
    """A tensor made by op 0 and read by op 2; op 1 needs all memory for itself."""
    return make_trace(3, [T(1, nbytes, "0w 2r", 0, 2)], workspace={1: 8 * MIB})


def test_one_tensor_that_must_go_and_come_back() -> None:
    # 3 ms of ops, 4 ms to write and 2 ms to read 8 MiB, none of it while an op runs
    problem = problem_of(away_at_op_1(), 8 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem) == pytest.approx(9 * MS, abs=2)
    assert lower_bound_ns(problem) <= 9 * MS
    answer = POLICIES["greedy"](problem)
    assert simulate_actions(problem.step, SLOW, answer.actions).step_ns == 9 * MS


def test_only_the_bytes_of_a_tensor_move_not_what_they_take_on_the_device() -> None:
    # 513 bytes take 1024, of which 512 must go: 256.5 bytes, with parts of tensors allowed
    trace = make_trace(3, [T(1, 513, "0w 2r", 0, 2)], workspace={1: 1024})
    step = load_step(trace)
    slow = Hardware(Ssd(1000, 1000, 0), HostLink(10**12, 10**12), {})
    problem = Problem(step, tuple(idle_intervals(step, 0)), 1536, 0, slow)
    assert lower_bound_ns(problem) == pytest.approx(3 * MS + 2 * 256.5 * MS, abs=2)


def test_ops_that_run_meanwhile_hide_transfers() -> None:
    # the write has ops 1 and 2 for its 4 ms, the read op 4 for its 2 ms: 3 ms are waited for
    trace = make_trace(6, [T(1, 8 * MIB, "0w 5r", 0, 5)], workspace={3: 8 * MIB})
    assert lower_bound_ns(problem_of(trace, 8 * MIB, hardware=SLOW)) == pytest.approx(9 * MS, abs=2)


def test_a_gap_between_ops_hides_transfers_too() -> None:
    trace = make_trace(
        3, [T(1, 8 * MIB, "0w 2r", 0, 2)], workspace={1: 8 * MIB}, gaps=[0, 5 * MS, 1 * MS]
    )
    assert lower_bound_ns(problem_of(trace, 8 * MIB, hardware=SLOW)) == pytest.approx(
        10 * MS, abs=2
    )


def test_two_intervals_share_a_copy() -> None:
    # written once: 4 ms; read twice, 2 ms each
    tensor = T(1, 8 * MIB, "0w 2r 4r", 0, 4)
    trace = make_trace(5, [tensor], workspace={1: 8 * MIB, 3: 8 * MIB})
    problem = problem_of(trace, 8 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem) == pytest.approx(13 * MS, abs=2)
    written = make_trace(5, [T(1, 8 * MIB, "0w 2rw 4r", 0, 4)], workspace={1: 8 * MIB, 3: 8 * MIB})
    problem = problem_of(written, 8 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem) == pytest.approx(17 * MS, abs=2)


def test_what_is_never_written_is_only_read() -> None:
    # a persistent tensor, absent at ops 1 and 2 of each step: no write, 2 ms to read
    trace = make_trace(3, [T(1, 8 * MIB, "0r")], workspace={1: 8 * MIB})
    problem = problem_of(trace, 8 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem) == pytest.approx(4 * MS, abs=2)
    changed = make_trace(3, [T(1, 8 * MIB, "0rw")], workspace={1: 8 * MIB})
    problem = problem_of(changed, 8 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem) == pytest.approx(8 * MS, abs=2)


def test_host_memory_helps_as_far_as_it_goes() -> None:
    # a link of 8 MiB in a ms: with room for all 1 ms each way, with room for half of it
    # 1 MiB of SSD and 3 MiB of link in the same time
    fast_link = replace(SLOW, host_link=HostLink(8 * MIB * 1000, 8 * MIB * 1000))
    trace = away_at_op_1()
    full = problem_of(trace, 8 * MIB, 8 * MIB, hardware=fast_link)
    assert lower_bound_ns(full) == pytest.approx(5 * MS, abs=2)
    half = problem_of(trace, 8 * MIB, 4 * MIB, hardware=fast_link)
    assert lower_bound_ns(half) == pytest.approx(6 * MS, abs=2)
    none_to_ssd = problem_of(trace, 8 * MIB, 8 * MIB, hardware=fast_link, ssd=False)
    assert lower_bound_ns(none_to_ssd) == pytest.approx(5 * MS, abs=2)


def test_what_goes_to_the_ssd_passes_the_link() -> None:
    narrow = replace(SLOW, host_link=HostLink(1 * MIB * 1000, 1 * MIB * 1000))
    problem = problem_of(away_at_op_1(), 8 * MIB, hardware=narrow)
    assert lower_bound_ns(problem) == pytest.approx(19 * MS, abs=2)


def test_a_limit_of_ssd_writes_leaves_the_rest_to_the_host() -> None:
    slow_link = replace(SLOW, host_link=HostLink(3 * MIB * 1000, 8 * MIB * 1000))
    trace = away_at_op_1()
    free = problem_of(trace, 8 * MIB, 8 * MIB, hardware=slow_link)
    limited = replace(free, ssd_write_bytes=0)
    assert lower_bound_ns(limited) >= lower_bound_ns(free)
    assert lower_bound_ns(limited) == pytest.approx((3 + 8 / 3 + 1) * MS, abs=2)


def test_memory_that_suffices_costs_nothing() -> None:
    problem = problem_of(away_at_op_1(), 16 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem) == 3 * MS


def test_the_certain_traffic_counts_without_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_module", lambda name: None)
    slow = with_rates(ASSUMED, ssd_read=10**8, host_link=10**9)
    problem = problem_of(training_trace(4), 0, hardware=slow)
    problem = replace(problem, planned_bytes=peak(problem.step) - 20 * MIB)
    assert lower_bound_ns(problem) == 20 * MIB * 10
    assert lower_bound_ns(replace(problem, host_bytes=1)) == 20 * MIB


def test_a_plan_that_is_known_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(away_at_op_1(), 8 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem, known_ns=8 * MS) == 8 * MS
    monkeypatch.setattr(bound, "solve", lambda model: pytest.fail("nothing is left to prove"))
    assert lower_bound_ns(problem, known_ns=3 * MS) == 3 * MS


def test_a_solver_that_fails_leaves_what_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(away_at_op_1(), 8 * MIB, hardware=SLOW)
    real = bound.solve

    def broken(model: solver.Model) -> solver.Solution:
        return replace(real(model), status="failed", values=None, duals=None)

    monkeypatch.setattr(bound, "solve", broken)
    assert lower_bound_ns(problem) == 3 * MS


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_the_fluid_proves_more_than_the_traffic_alone(share: float) -> None:
    problem = problem_of(training_trace(8), 0, hardware=with_rates(ASSUMED, ssd_write=10**9))
    problem = replace(problem, planned_bytes=int(share * peak(problem.step)))
    answer = POLICIES["greedy"](problem)
    step_ns = simulate_actions(problem.step, problem.hardware, answer.actions).step_ns
    assert bound._simple_ns(problem) < lower_bound_ns(problem) <= step_ns


@examples(30)
@given(problems(), st.sampled_from([2, 3, 5, 48]))
def test_no_plan_is_faster(problem: Problem, n_cuts: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "_CUTS", n_cuts)
        patch.setattr(bound, "_MOST_CUTS", n_cuts)
        least = lower_bound_ns(problem)
    for policy in (POLICIES[name] for name in FAST):
        try:
            actions = policy(problem).actions
        except CannotFitError:
            continue
        if planned_peak(problem.step, actions) <= problem.planned_bytes:
            step_ns = simulate_actions(problem.step, problem.hardware, actions).step_ns
            assert least <= step_ns


@examples(25)
@given(problems((0,)), st.integers(1, 4), st.integers(1, 12 * MIB))
def test_more_never_makes_it_slower(problem: Problem, times: int, more: int) -> None:
    least = lower_bound_ns(problem)
    ssd = problem.hardware.ssd
    faster = Ssd(ssd.read_bytes_per_s * times, ssd.write_bytes_per_s * times, ssd.latency_ns)
    better = [
        replace(problem, planned_bytes=problem.planned_bytes + more),
        replace(problem, hardware=replace(problem.hardware, ssd=faster)),
        replace(problem, host_bytes=more),
    ]
    for other in better:
        assert lower_bound_ns(other) <= least * (1 + 1e-6)
