from dataclasses import replace

import pytest
from traces import MIB, training_trace

from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.matching import require_match
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
