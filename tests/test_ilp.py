"""The integer program as a policy: what it finds, what it proves, and how it says so."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from problems import checked_plan, problem_of
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner import solver
from teraio.planner.absence import planned_peak
from teraio.planner.bound import sized_fluid
from teraio.planner.draft import proven_least
from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.minimum import least_memory
from teraio.planner.plan import MIN_TENSOR_BYTES, Hardware, HostLink, Ssd
from teraio.planner.policies.auto import auto
from teraio.planner.policies.greedy import greedy
from teraio.planner.policies.ilp import NO_SOLVER, ilp
from teraio.planner.problem import Answer, Problem
from teraio.planner.simulate import simulate_actions
from teraio.planner.solver import Solution
from teraio.planner.step import LARGEST, idle_intervals, load_step, peak
from teraio.profiler.trace import read_trace

module = import_module("teraio.planner.policies.ilp")

TRACES = Path(__file__).parent.parent / "sample_traces"
MS = 1_000_000
SLOW = Hardware(Ssd(4 * MIB * 1000, 2 * MIB * 1000, 0), HostLink(10**12, 10**12), {})
"""Reads 4 MiB and writes 2 MiB in a ms; the link does not matter."""


def step_ns(problem: Problem, answer: Answer) -> int:
    assert planned_peak(problem.step, answer.actions) <= problem.planned_bytes
    return simulate_actions(problem.step, problem.hardware, answer.actions).step_ns


def crossed() -> Problem:
    """Four activations; greedy waits 4 ms for them, and 2 ms is possible."""
    tensors = [
        T(1, 4 * MIB, "5w 8r 9r", 5, 9),
        T(2, 4 * MIB, "0w 7r 9r", 0, 9),
        T(3, 4 * MIB, "4w 8r", 4, 8),
        T(4, 4 * MIB, "7w 9r 10r", 7, 10),
    ]
    trace = make_trace(12, tensors, workspace={3: 4 * MIB})
    return problem_of(trace, 14 * MIB, hardware=SLOW)


def stubborn() -> Problem:
    """A step whose best plan is not proven to be the best."""
    problem = problem_of(training_trace(4), 0, hardware=SLOW)
    return replace(problem, planned_bytes=peak(problem.step) // 2, time_limit_s=2)


def test_better_than_greedy_and_proven() -> None:
    problem = crossed()
    answer = ilp(problem)
    assert step_ns(problem, greedy(problem)) == 16 * MS
    assert step_ns(problem, answer) == 14 * MS
    assert answer.status.startswith("gap closed: no plan is more than 0.0")
    assert answer.gap is not None
    assert answer.gap < 1e-3
    assert answer.solver.startswith("HiGHS ")
    assert answer.bound_ns is not None
    assert 14 * MS * (1 - 1e-3) <= answer.bound_ns <= 14 * MS


def test_a_gap_that_no_program_closes_is_told() -> None:
    tensors = [
        T(1, 8 * MIB, "2w 10r 11rw", 2, 11),
        T(2, 4 * MIB, "0w 3r 8r", 0, 8),
        T(3, 4 * MIB, "2rw 8r 10rw"),
    ]
    trace = make_trace(12, tensors, workspace={9: 4 * MIB})
    problem = problem_of(trace, 12 * MIB, hardware=SLOW, ssd_write_bytes=12 * MIB)
    answer = ilp(problem)
    assert answer.gap is not None
    assert answer.gap > 1e-3
    assert f"at most {answer.gap:.2%} above the fastest possible" in answer.status
    assert "(the program is solved: more time does not help)" in answer.status


def test_finer_programs_are_solved_while_they_prove_too_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []

    def solve(model: solver.Model, **options: object) -> Solution:
        if model.whole.any():
            sizes.append(len(model.cost))
        return _ending("optimal")(model, **options)

    monkeypatch.setattr(module, "solve", solve)
    monkeypatch.setattr(module, "_FINER", (400, 800, 800, 4000))
    problem = replace(stubborn(), time_limit_s=60)
    assert "(the program is solved: more time does not help)" in ilp(problem).status
    assert len(sizes) == 2
    assert sizes == sorted(set(sizes))


def test_cuts_where_a_plan_waits_prove_more() -> None:
    step = load_step(read_trace(TRACES / "convnet.parquet"))
    intervals = tuple(idle_intervals(step, MIN_TENSOR_BYTES))
    problem = Problem(step, intervals, least_memory(step, intervals).nbytes, 0, ASSUMED)
    known = simulate_actions(step, ASSUMED, greedy(problem).actions)

    def proven_ns(at: list[int]) -> float:
        fluid = sized_fluid(problem, most_variables=4_000, at=at)
        model = fluid.draft.model()
        duals = solver.solve(model).duals
        assert duals is not None
        return proven_least(model, duals) * fluid.unit_ns

    more = proven_ns([op for op, _ in known.waits])
    assert proven_ns([]) < 0.1 * more
    assert more <= known.stall_ns


def test_the_plan_has_the_bound_that_was_proven() -> None:
    trace = make_trace(3, [T(1, 8 * MIB, "0w 2r", 0, 2)], workspace={1: 4 * MIB})
    options = {"sha256": "0" * 64, "memory_bytes": 8 * MIB, "hardware": SLOW}
    fluid = make_plan(trace, policy="greedy", **options)
    plan = make_plan(trace, policy="ilp", **options)
    assert fluid.prediction.lower_bound_ns < 6.1 * MS
    assert plan.prediction.lower_bound_ns > 8.9 * MS
    assert plan.prediction.step_ns == 9 * MS
    assert plan.policy.name == "ilp"
    assert plan.policy.gap == plan.prediction.step_ns / plan.prediction.lower_bound_ns - 1


def test_a_step_that_does_not_wait_needs_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "solve", lambda *_, **__: pytest.fail("nothing is to be found"))
    problem = problem_of(training_trace(8, op_ns=50 * MS), 0)
    problem = replace(problem, planned_bytes=int(0.6 * peak(problem.step)))
    answer = ilp(problem)
    assert (answer.status, answer.gap) == ("gap closed: no plan is faster", 0)
    assert step_ns(problem, answer) == problem.step.period_ns


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("no solution", "(time limit of 30 s, nothing found)"),
        ("feasible", "(time limit of 30 s)"),
        ("infeasible", "(the solver says infeasible)"),
        ("failed", "(the solver says failed)"),
    ],
)
def test_how_the_solver_ended_is_told(
    monkeypatch: pytest.MonkeyPatch, status: solver.Status, words: str
) -> None:
    problem = replace(stubborn(), time_limit_s=30)
    monkeypatch.setattr(module, "solve", _ending(status))
    answer = ilp(problem)
    assert answer.status.startswith("gap not closed: at most ")
    assert words in answer.status
    assert step_ns(problem, answer) <= step_ns(problem, greedy(problem))


def _ending(status: solver.Status):
    def solve(model: solver.Model, **options: object) -> Solution:
        found = solver.solve(replace(model, whole=model.whole & False), **options)  # type: ignore[arg-type]
        values = found.values if status == "feasible" else None
        return replace(found, status=status, values=values, bound=None)

    return solve


def test_a_known_plan_is_kept_if_the_simulator_finds_it_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = stubborn()
    known = auto(problem)
    monkeypatch.setattr(module, "solve", _ending("no solution"))
    answer = ilp(problem)
    assert answer.actions == known.actions
    assert answer.status.endswith(f"; {known.policy} kept: the simulator finds it faster")


def test_no_time_is_no_error() -> None:
    problem = replace(stubborn(), time_limit_s=1e-3)
    answer = ilp(problem)
    assert answer.status.startswith("gap not closed: at most ")
    assert "(time limit of 0.001 s)" in answer.status
    assert step_ns(problem, answer) <= step_ns(problem, greedy(problem))


def test_without_a_solver_the_plan_of_greedy_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_module", lambda name: None)
    problem = crossed()
    answer = ilp(problem)
    assert answer.status == f"{NO_SOLVER}: the plan is that of {auto(problem).policy}"
    assert (answer.solver, answer.gap, answer.policy) == ("", None, "")
    assert step_ns(problem, answer) <= step_ns(problem, greedy(problem))


def test_names_do_not_matter() -> None:
    # names that are the same, or become the same once a solver has replaced their characters
    tensors = [
        T(1, 8 * MIB, "0w 4r", 0, 4, name="a b"),
        T(2, 8 * MIB, "1w 4r", 1, 4, name="a_b"),
        T(3, 8 * MIB, "1w 5r", 1, 5, name="a_b"),
    ]
    problem = problem_of(make_trace(6, tensors, workspace={3: 8 * MIB}), 24 * MIB, hardware=SLOW)
    assert step_ns(problem, ilp(problem)) <= step_ns(problem, greedy(problem))


def test_sizes_may_be_as_large_as_a_trace_can_have() -> None:
    # the first must go and come back: 2^61 bytes each way at 10^12 bytes per second
    trace = make_trace(
        4, [T(1, LARGEST, "0w 3r", 0, 3), T(2, LARGEST, "1w 2r", 1, 2)], workspace={1: 512}
    )
    step = load_step(trace)
    fast = Hardware(Ssd(10**12, 10**12, 0), HostLink(10**12, 10**12), {})
    problem = Problem(step, tuple(idle_intervals(step, 1)), LARGEST + 512, 0, fast)
    answer = ilp(replace(problem, time_limit_s=5))
    expected = 4 * MS + 2 * LARGEST * 10**9 // 10**12
    assert step_ns(problem, answer) == pytest.approx(expected, rel=1e-9)
    assert answer.bound_ns == pytest.approx(expected, rel=1e-3)


def test_a_step_of_one_op_has_nothing_to_move() -> None:
    tensors = [T(1, 4 * MIB, "0rw", kind="parameter"), T(2, MIB, "0w", alloc=0, free=0)]
    step = load_step(make_trace(1, tensors))
    answer = ilp(Problem(step, (), peak(step), 0, SLOW))
    assert (answer.actions, answer.status) == ((), "gap closed: no plan is faster")


def test_same_problem_same_plan() -> None:
    assert replace(ilp(crossed()), gap=None) == replace(ilp(crossed()), gap=None)


@examples(12)
@given(traces(), hardware(), st.sampled_from([0, 0.3, 0.8]), st.booleans())
def test_any_trace_gets_a_right_plan(trace, channels, share, host):
    checked_plan(trace, "ilp", share, hardware=channels, host_bytes=(1 << 40) * host)
