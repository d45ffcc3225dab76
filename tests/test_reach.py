"""What a policy reaches where host memory or SSD writes are limited."""

import pytest
from traces import MIB, training_trace

from teraio.planner.controls import problem_of
from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Budget, Controls
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.reach import answer_that_fits, least_found
from teraio.planner.step import load_step, peak

TRACE = training_trace(6)
STEP = load_step(TRACE)
TOP = peak(STEP)


def problem_for(memory_bytes, *, host_bytes=0, **rules):
    return problem_of(STEP, Budget(memory_bytes, host_bytes, 0.0), ASSUMED, Controls(**rules))


def never(problem):
    raise CannotFitError("no way")


def plan_for(memory_bytes, **options):
    options = {"sha256": "", "hardware": ASSUMED, "policy": "greedy"} | options
    return make_plan(TRACE, memory_bytes=memory_bytes, **options)


def test_a_step_that_fits_is_not_asked_about():
    assert answer_that_fits(problem_for(TOP), never) == Answer(())


def test_an_answer_that_does_not_fit_is_none():
    with pytest.raises(CannotFitError, match=f"no plan for {TOP - 1} bytes") as caught:
        answer_that_fits(problem_for(TOP - 1), lambda problem: Answer(()))
    assert "--policy" in caught.value.hint


@pytest.mark.parametrize(
    ("rules", "option"),
    [
        ({"ssd_write_bytes": 0}, "--ssd-writes"),
        ({"host_bytes": MIB}, "--host-memory"),
        ({"host_bytes": MIB, "tiers": ("host",)}, "--tiers ssd,host"),
    ],
)
def test_a_policy_that_gives_up_gets_a_hint_on_the_limits(rules, option):
    with pytest.raises(CannotFitError, match="no way") as caught:
        answer_that_fits(problem_for(MIB, **rules), never)
    assert f"`{option}`" in caught.value.hint
    assert all(("--ssd-writes" in caught.value.hint) == (key == "ssd_write_bytes") for key in rules)


@pytest.mark.parametrize("least", [8 * MIB, 30 * MIB, 64 * MIB - 512, TOP])
def test_the_search_ends_within_a_hundredth_of_the_least(least, monkeypatch):
    asked = []

    def policy(problem):
        asked.append(problem.planned_bytes)
        if problem.planned_bytes < least:
            raise CannotFitError("no way")
        return Answer((), status=str(problem.planned_bytes))

    monkeypatch.setattr("teraio.planner.reach.planned_peak", lambda step, actions: 0)
    problem, answer = least_found(problem_for(4 * MIB), policy)
    assert least <= problem.planned_bytes <= least * 1.011
    assert answer.status == ("" if least == TOP else str(problem.planned_bytes))
    assert len(asked) <= 10


def test_limits_that_make_a_budget_impossible_are_an_error():
    rules = Controls(ssd_write_bytes=8 * MIB)
    with pytest.raises(CannotFitError) as caught:
        plan_for(20 * MIB, controls=rules)
    assert "a larger `--ssd-writes`" in caught.value.hint
    assert "`--or-minimum` searches" in caught.value.hint
    assert caught.value.exit_code == 69


def test_the_least_memory_under_limits_is_searched_for():
    rules = Controls(ssd_write_bytes=40 * MIB)
    plan = plan_for(20 * MIB, controls=rules, or_minimum=True)
    least = plan.budget.memory_bytes
    assert 20 * MIB < least < TOP
    assert 0 < plan.prediction.ssd.to_tier_bytes <= 40 * MIB
    assert plan_for(least, controls=rules).actions == plan.actions
    with pytest.raises(CannotFitError):
        plan_for(int(least * 0.98), controls=rules)
    more = plan_for(20 * MIB, controls=rules, or_minimum=True, margin=0.1)
    assert more.prediction.peak_bytes <= more.budget.planned_bytes < more.budget.memory_bytes
