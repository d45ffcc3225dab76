from dataclasses import replace

import pytest
from traces import MIB, training_trace

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.matching import require_match, require_sound
from teraio.planner.plan import Offload
from teraio.planner.step import load_step
from teraio.profiler.errors import BadInputError


@pytest.fixture(scope="module")
def sample():
    trace = training_trace(4)
    plan = make_plan(trace, sha256="", memory_bytes=30 * MIB, hardware=ASSUMED)
    return load_step(trace), plan


def test_a_plan_matches_its_trace_and_its_like(sample):
    step, plan = sample
    require_match(step, plan)
    require_match(load_step(training_trace(4, op_ns=7)), plan)


def with_op_named(step, number, name):
    ops = list(step.ops)
    ops[number] = ops[number]._replace(name=name)
    return replace(step, ops=tuple(ops))


OTHER = {
    "it has 20 ops, the trace 25": lambda step: load_step(training_trace(5)),
    "op 3 is `aten.op3` in it, `aten.mm` in the trace": lambda step: with_op_named(
        step, 3, "aten.mm"
    ),
    "is not in the trace": lambda step: replace(step, tensors=step.tensors[:1]),
    "has 4194304 bytes in it, 4194816 in the trace": lambda step: load_step(
        training_trace(4, width=4 * MIB + 512)
    ),
}


@pytest.mark.parametrize("words", OTHER)
def test_the_first_difference_is_named(sample, words):
    step, plan = sample
    with pytest.raises(BadInputError, match="the plan is for another trace: ") as caught:
        require_match(OTHER[words](step), plan)
    assert words in str(caught.value)


def test_a_plan_is_sound_whatever_it_predicts(sample):
    step, plan = sample
    told = replace(plan.prediction, step_ns=1, peak_bytes=0)
    require_sound(step, replace(plan, prediction=told))
    require_sound(load_step(training_trace(4, op_ns=7)), plan)


def without_writes(plan):
    changed = (replace(a, write=False) if isinstance(a, Offload) else a for a in plan.actions)
    return replace(plan, actions=tuple(changed))


UNSOUND = {
    "the copy is not current": without_writes,
    "over the budget": lambda plan: replace(plan, actions=(), tensors=()),
    "prefetches of one tensor": lambda plan: replace(plan, actions=plan.actions[1:]),
}


@pytest.mark.parametrize("rule", UNSOUND)
def test_a_broken_rule_is_named(sample, rule):
    step, plan = sample
    with pytest.raises(BadInputError, match=rule):
        require_sound(step, UNSOUND[rule](plan))
