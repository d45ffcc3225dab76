from dataclasses import replace
from pathlib import Path

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from problems import checked_plan, problem_of
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner.hardware import ASSUMED, with_rates
from teraio.planner.minimum import least_memory
from teraio.planner.plan import MIN_TENSOR_BYTES
from teraio.planner.policies import POLICIES
from teraio.planner.policies.auto import auto
from teraio.planner.policies.fluid import fluid
from teraio.planner.policies.greedy import greedy
from teraio.planner.problem import CannotFitError
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import idle_intervals, load_step, peak
from teraio.profiler.errors import SolverMissingError
from teraio.profiler.trace import read_trace

TRACES = Path(__file__).parent.parent / "sample_traces"
SLOW = with_rates(ASSUMED, ssd_read=500_000_000, ssd_write=500_000_000)


def problem_at(trace, share, channels=ASSUMED, host_bytes=0):
    """The budget is that share of the way from the least that is possible to the peak."""
    step = load_step(trace)
    least = least_memory(step, idle_intervals(step, MIN_TENSOR_BYTES)).nbytes
    return problem_of(trace, least + int(share * (peak(step) - least)), host_bytes, channels)


def step_ns(problem, answer):
    return simulate_actions(problem.step, problem.hardware, answer.actions).step_ns


@pytest.mark.parametrize("policy", ["fluid", "auto"])
@examples(25)
@given(
    trace=traces(), channels=hardware(), share=st.sampled_from([0, 0.3, 0.8]), host=st.booleans()
)
def test_any_budget_from_the_least_up_gets_a_right_plan(policy, trace, channels, share, host):
    checked_plan(trace, policy, share, hardware=channels, host_bytes=(1 << 40) * host)


def test_what_the_fluid_moves_is_better_where_the_channels_are_the_limit():
    trace = read_trace(TRACES / "teraio-llama.parquet")
    slow = with_rates(ASSUMED, ssd_read=300_000_000, ssd_write=300_000_000)
    problem = problem_of(trace, peak(load_step(trace)) * 8 // 10, 0, slow)
    assert step_ns(problem, fluid(problem)) < 0.85 * step_ns(problem, greedy(problem))


def test_auto_is_greedy_where_that_does_not_stall():
    problem = problem_at(training_trace(8, op_ns=50_000_000), 0.6)
    assert auto(problem) == replace(greedy(problem), policy="greedy")


@examples(20)
@given(traces(), hardware(), st.sampled_from([0, 0.3, 0.8]))
def test_auto_is_never_slower_than_teraio_and_g10(trace, channels, share):
    problem = problem_at(trace, share, channels)
    if problem.planned_bytes >= peak(problem.step):
        return
    ours = step_ns(problem, auto(problem))
    for name in ("teraio2025", "g10", "greedy", "fluid"):
        try:
            theirs = POLICIES[name](problem)
        except CannotFitError:
            continue
        assert ours <= step_ns(problem, theirs)


def test_without_a_solver_auto_does_what_it_can(monkeypatch):
    monkeypatch.setattr("teraio.planner.solver.solvers", list)
    problem = problem_at(training_trace(6, op_ns=1_000_000), 0.3, SLOW)
    with pytest.raises(SolverMissingError):
        fluid(problem)
    assert auto(problem).actions


@examples(25, derandomize=True)
@given(
    traces(),
    hardware(),
    st.integers(0, 7),
    st.integers(1, 8),
    st.sampled_from([1, 2, 5]),
)
def test_more_memory_or_bandwidth_gives_no_slower_plan(trace, channels, eighths, more, times):
    less = problem_at(trace, eighths / 8, channels)
    before = step_ns(less, auto(less))
    with_memory = problem_at(trace, min(1.0, (eighths + more) / 8), channels)
    assert step_ns(with_memory, auto(with_memory)) <= before
    faster = with_rates(
        channels,
        ssd_read=channels.ssd.read_bytes_per_s * times,
        ssd_write=channels.ssd.write_bytes_per_s * times,
        host_link=channels.host_link.to_gpu_bytes_per_s * times,
    )
    with_rate = replace(less, hardware=faster)
    assert step_ns(with_rate, auto(with_rate)) <= before


def test_a_step_of_one_op_has_nothing_to_move():
    tensors = [T(1, 4 * MIB, "0rw", kind="parameter"), T(2, MIB, "0w", alloc=0, free=0)]
    problem = problem_at(make_trace(1, tensors), 0.0)
    assert auto(problem).actions == ()
