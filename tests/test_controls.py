"""What the controls mean for a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, make_trace, training_trace

from teraio.planner.controls import (
    host_only,
    label,
    matched,
    matches,
    pattern_fault,
    problem_of,
    texts,
)
from teraio.planner.hardware import ASSUMED
from teraio.planner.plan import NO_CONTROLS, Budget, Controls
from teraio.planner.step import idle_intervals, load_step
from teraio.profiler.errors import UsageError

STEP = load_step(
    make_trace(
        8,
        [
            T(1, 4 * MIB, "0r 7r", kind="parameter", name="layers.3.mlp.weight"),
            T(2, 4 * MIB, "0r 7rw", kind="optimizer_state", name="layers.3.mlp.weight.exp_avg"),
            T(3, 4 * MIB, "2w 6r", 2, 6),
            T(4, MIB // 2, "0r 7r", kind="buffer", name="input_mask"),
            T(5, 4 * MIB, "0r 7r", kind="input"),
        ],
    )
)


def ids(step, found):
    return {step.tensors[index].id for index in found}


def asked(controls, host_bytes=0):
    return problem_of(STEP, Budget(8 * MIB, host_bytes, 0.0), ASSUMED, controls)


def movable(controls, host_bytes=0):
    return ids(STEP, {i.tensor for i in asked(controls, host_bytes).intervals})


def test_an_unnamed_tensor_is_called_after_the_op_that_made_it():
    assert [label(STEP, tensor) for tensor in STEP.tensors] == [
        "layers.3.mlp.weight",
        "layers.3.mlp.weight.exp_avg",
        "aten.op2 in layers.2",
        "input_mask",
        "",
    ]
    assert texts(STEP, STEP.tensors[2])[1] == "activation:aten.op2 in layers.2"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"layers\.3\.", {1, 2}),
        (r"^layers\.3\.mlp\.weight$", {1}),
        ("weight", {1, 2}),
        ("op2", {3}),
        (r"in layers\.2$", {3}),
        ("^optimizer_state:", {2}),
        ("^(parameter|optimizer_state):layers", {1, 2}),
        ("^activation:", {3}),
        ("^input:", {5}),
        ("^input_", {4}),
        ("", {1, 2, 3, 4, 5}),
        ("^$", {5}),
        ("nothing", set()),
    ],
)
def test_patterns_find_names_origins_and_kinds(pattern, found):
    assert ids(STEP, matched(STEP, [pattern])) == found


def test_each_pattern_answers_for_itself():
    found = matches(STEP, ["op2", "nothing"])
    assert {pattern: ids(STEP, own) for pattern, own in found.items()} == {
        "op2": {3},
        "nothing": set(),
    }
    assert matches(STEP, []) == {}
    assert ids(STEP, matched(STEP, ["op2", "^input"])) == {3, 4, 5}


@pytest.mark.parametrize("pattern", ["(", "[", "*", "(?P<a>x)(?P<a>y)", "x{99999999999}", "\\"])
def test_what_is_no_regular_expression_is_said(pattern):
    assert pattern_fault(pattern)
    with pytest.raises(UsageError, match="not a regular expression") as caught:
        matched(STEP, [pattern])
    assert "`" in caught.value.hint


@given(st.text(alphabet="ab.*+?()[]{}|\\^$0-9,:<>P=!#\n", max_size=12))
def test_any_text_is_a_pattern_or_a_usage_error(text):
    try:
        matched(STEP, [text])
    except UsageError:
        assert pattern_fault(text)
    else:
        assert not pattern_fault(text)


def test_only_intervals_that_may_be_used_are_asked_for():
    assert movable(NO_CONTROLS) == {1, 2, 3, 4, 5}
    assert movable(Controls()) == {1, 2, 3, 5}
    assert movable(Controls(keep=("mlp",))) == {3, 5}
    assert movable(Controls(never_ssd=("^activation:",))) == {1, 2, 5}
    assert movable(Controls(never_ssd=("^activation:",)), MIB) == {1, 2, 3, 5}
    assert movable(Controls(tiers=("host",))) == set()
    assert movable(Controls(tiers=("host",)), MIB) == {1, 2, 3, 5}
    assert movable(Controls(min_tensor_bytes=4 * MIB + 1)) == set()


def test_what_a_policy_is_asked():
    problem = asked(Controls(never_ssd=("op2",), ssd_write_bytes=7), 3 * MIB)
    assert problem.tiers(0) == ("ssd", "host")
    assert problem.tiers(2) == ("host",)
    assert ids(STEP, host_only(problem)) == {3}
    assert (problem.planned_bytes, problem.host_bytes, problem.ssd_write_bytes) == (
        8 * MIB,
        3 * MIB,
        7,
    )
    assert asked(Controls(tiers=("ssd",)), MIB).host_bytes == 0
    only = asked(Controls(tiers=("host",)), MIB)
    assert not only.ssd
    assert ids(STEP, host_only(only)) == {1, 2, 3, 5}


def test_without_controls_every_interval_may_be_used():
    step = load_step(training_trace(4))
    problem = problem_of(step, Budget(1, 0, 0.0), ASSUMED, NO_CONTROLS)
    assert problem.intervals == tuple(idle_intervals(step, 0))
