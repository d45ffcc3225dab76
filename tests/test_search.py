"""The search for better plans: what counts as better, and how far it looks."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import checked_plan, problem_of
from traces import MIB, T, hardware, make_trace, traces, training_trace

from teraio.planner import search
from teraio.planner.absence import planned_peak
from teraio.planner.attempt import attempt
from teraio.planner.grid import Grid
from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.planner.policies.auto import auto
from teraio.planner.policies.fluid import fluid
from teraio.planner.policies.greedy import greedy
from teraio.planner.policies.ilp import ilp
from teraio.planner.problem import Answer, Problem
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import peak

attempts = import_module("teraio.planner.attempt")
auto_policy = import_module("teraio.planner.policies.auto")

SLOW = Hardware(
    Ssd(4 * MIB * 1000, 2 * MIB * 1000, 0), HostLink(8 * MIB * 1000, 8 * MIB * 1000), {}
)
"""The SSD reads 4 MiB and writes 2 MiB in a ms, the link carries 8 MiB."""


def few_writes() -> Problem:
    """A step that may write 12 MiB: what is taken first leaves too little of that."""
    tensors = [
        T(1, 8 * MIB, "2w 10r 11rw", 2, 11),
        T(2, 4 * MIB, "0w 3r 8r", 0, 8),
        T(3, 4 * MIB, "2rw 8r 10rw"),
    ]
    trace = make_trace(12, tensors, workspace={9: 4 * MIB})
    return problem_of(trace, 12 * MIB, 0, SLOW, ssd_write_bytes=12 * MIB)


def little_host_memory() -> Problem:
    """A step that may only use 12 MiB of host memory."""
    tensors = [T(1, 4 * MIB, "0w 3r", 0, 3), T(2, 4 * MIB, "1r 2r"), T(3, 8 * MIB, "2rw 6r")]
    trace = make_trace(7, tensors, workspace={6: 4 * MIB})
    return problem_of(trace, 12 * MIB, 12 * MIB, SLOW, ssd=False)


def only_fluid_fits() -> Problem:
    """A step that may only use 4 MiB of host memory: greedy finds no plan."""
    tensors = [
        T(1, 8 * MIB, "5w 6r 8rw", 5, 8),
        T(2, 4 * MIB, "6w 9r", 6, 9),
        T(3, 4 * MIB, "3w 7r 10r", 3, 10),
    ]
    trace = make_trace(11, tensors, workspace={4: 4 * MIB})
    return problem_of(trace, 12 * MIB, 4 * MIB, SLOW, ssd=False)


def slow_step() -> Problem:
    """A step that waits for the SSD, where fluid finds a faster plan than greedy."""
    problem = problem_of(training_trace(3), 0, 0, SLOW)
    return replace(problem, planned_bytes=peak(problem.step) // 3)


def fits(problem: Problem, answer: Answer) -> bool:
    return planned_peak(problem.step, answer.actions) <= problem.planned_bytes


@pytest.mark.parametrize("make", [few_writes, little_host_memory])
def test_a_first_plan_that_does_not_fit_makes_way_for_one_that_does(make) -> None:
    problem = make()
    first = attempt(problem, Grid.of(problem))
    answer = greedy(problem)
    assert not first.fits
    assert fits(problem, answer)
    assert all(fits(problem, policy(problem)) for policy in (auto, fluid, ilp))


def test_auto_takes_a_slower_plan_that_fits_over_one_of_greedy_that_does_not() -> None:
    problem = only_fluid_fits()
    simulated = simulate_actions(problem.step, SLOW, greedy(problem).actions)
    assert not fits(problem, greedy(problem))
    answer = auto(problem)
    assert fits(problem, answer)
    assert answer.policy == "fluid"
    assert simulate_actions(problem.step, SLOW, answer.actions).step_ns > simulated.step_ns


def test_a_plan_that_does_not_fit_is_improved_on_even_if_it_does_not_stall() -> None:
    problem = few_writes()
    none = attempt(problem, Grid.of(problem), left_out=frozenset(range(6)))
    slow = attempt(problem, Grid.of(problem))._replace(fits=True)
    assert (none.fits, none.simulation.stall_ns) == (False, 0)
    assert slow.simulation.stall_ns > 0
    with patch.object(search, "attempt", side_effect=[none, slow]):
        looking = search.Search(problem)
        looking.begin()
        assert looking.best is none
        looking.begin()
        assert looking.best is slow


def test_a_long_step_that_stalls_gets_the_first_plan_of_greedy(monkeypatch) -> None:
    problem = slow_step()
    assert auto(problem).policy != "greedy"
    for module in (attempts, auto_policy):
        monkeypatch.setattr(module, "LONG", 1)
    monkeypatch.setattr(auto_policy, "fluid", lambda _: pytest.fail("greedy's plan fits"))
    answer = auto(problem)
    assert answer == replace(greedy(problem), policy="greedy")
    assert fits(problem, answer)


def test_in_a_long_step_others_are_asked_for_a_plan_that_fits(monkeypatch) -> None:
    problem = only_fluid_fits()
    monkeypatch.setattr(auto_policy, "LONG", 1)
    assert auto(problem).policy == "fluid"
    assert fits(problem, auto(problem))


@settings(deadline=None)
@given(traces(), hardware(), st.sampled_from([0, 0.3, 0.8]), st.booleans())
def test_a_step_planned_as_if_it_was_long_gets_a_right_plan(trace, channels, share, host) -> None:
    with patch.object(attempts, "LONG", 1):
        checked_plan(trace, "greedy", share, hardware=channels, host_bytes=(1 << 40) * host)
