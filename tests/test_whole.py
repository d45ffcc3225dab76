"""The program of whole tensors holds every plan, and never says that one is too fast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from problems import problem_of, problems
from traces import MIB, T, make_trace

from teraio.planner.absence import planned_peak
from teraio.planner.attempt import Start
from teraio.planner.bound import lower_bound_ns, sized_fluid
from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.planner.policies import POLICIES
from teraio.planner.problem import CannotFitError, Problem
from teraio.planner.simulate import simulate_actions
from teraio.planner.solver import solve
from teraio.planner.step import peak
from teraio.planner.whole import Whole

MS = 1_000_000
SLOW = Hardware(Ssd(4 * MIB * 1000, 2 * MIB * 1000, 0), HostLink(10**12, 10**12), {})
"""Reads 4 MiB and writes 2 MiB in a ms; the link does not matter."""


def whole(problem: Problem) -> Whole:
    return Whole(problem, sized_fluid(problem, whole=True))


def bound_ns(problem: Problem) -> int:
    program = whole(problem)
    found = solve(program.model)
    assert found.status == "optimal"
    assert found.bound is not None
    return program.bound_ns(found.bound)


def test_half_a_tensor_relieves_nothing() -> None:
    # op 1 lacks 4 MiB; 8 MiB must go, 4 ms, and come back, 2 ms; half of it would do for fluids
    trace = make_trace(3, [T(1, 8 * MIB, "0w 2r", 0, 2)], workspace={1: 4 * MIB})
    problem = problem_of(trace, 8 * MIB, hardware=SLOW)
    assert lower_bound_ns(problem) == pytest.approx(6 * MS, abs=2)
    assert bound_ns(problem) == pytest.approx(9 * MS, rel=1e-3)
    assert bound_ns(problem) <= 9 * MS


def test_alike_tensors_are_counted() -> None:
    # of three tensors of 4 MiB two must go: 8 MiB
    tensors = [T(k, 4 * MIB, "0w 2r", 0, 2) for k in range(3)]
    problem = problem_of(make_trace(3, tensors, workspace={1: 5 * MIB}), 12 * MIB, hardware=SLOW)
    program = whole(problem)
    found = solve(program.model)
    assert found.values is not None
    assert [one.interval for one in program.chosen(found.values)] == [0, 1]
    assert bound_ns(problem) == pytest.approx(9 * MS, rel=1e-3)


def test_what_is_chosen_is_away_when_the_cut_says() -> None:
    trace = make_trace(8, [T(1, 8 * MIB, "0w 7r", 0, 7)], workspace={3: 8 * MIB, 4: 8 * MIB})
    problem = problem_of(trace, 8 * MIB, hardware=SLOW)
    program = whole(problem)
    found = solve(program.model)
    assert found.values is not None
    (start,) = program.chosen(found.values)
    assert start == Start(0, "ssd", 3, 4)


def test_a_copy_made_ahead_is_an_offload_of_its_own() -> None:
    # the copy is made in the long first interval, so that the second needs no write
    tensor = T(1, 8 * MIB, "0w 20r 22r", 0, 22)
    problem = problem_of(make_trace(23, [tensor], workspace={21: 8 * MIB}), 8 * MIB, hardware=SLOW)
    program = whole(problem)
    found = solve(program.model)
    assert found.values is not None
    assert [one.interval for one in program.chosen(found.values)] == [0, 1]
    # only the 2 ms of the last read are waited for
    assert bound_ns(problem) == pytest.approx(25 * MS, rel=1e-3)


@examples(40)
@given(problems())
def test_every_plan_is_a_solution(problem: Problem) -> None:
    if problem.planned_bytes >= peak(problem.step):
        return
    program = whole(problem)
    for name in ("greedy", "teraio2025", "g10", "ssdtrain"):
        try:
            actions = POLICIES[name](problem).actions
        except CannotFitError:
            continue
        if planned_peak(problem.step, actions) > problem.planned_bytes:
            continue
        start = program.start(actions)
        fixed = ~np.isnan(start)
        model = program.model
        found = solve(
            replace(
                model,
                whole=np.zeros_like(model.whole),
                lower=np.where(fixed, start, model.lower),
                upper=np.where(fixed, start, model.upper),
            )
        )
        assert found.status == "optimal", name
        assert found.bound is not None
        step_ns = simulate_actions(problem.step, problem.hardware, actions).step_ns
        assert program.bound_ns(found.bound) <= step_ns


@examples(15)
@given(problems())
def test_the_program_proves_at_least_what_the_fluid_does(problem: Problem) -> None:
    if problem.planned_bytes >= peak(problem.step):
        return
    found = solve(whole(problem).model, time_limit_s=5)
    if found.status == "optimal":
        assert found.bound is not None
        least = lower_bound_ns(problem)
        assert whole(problem).bound_ns(found.bound) >= least * (1 - 3e-4) - 1
