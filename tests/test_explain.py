"""Why a tensor moves or stays."""

from dataclasses import replace

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import MIB, T, hardware, make_trace, traces

from teraio.planner.explain import explain, find_tensor
from teraio.planner.hardware import ASSUMED
from teraio.planner.make import make_plan
from teraio.planner.plan import Controls, Offload
from teraio.planner.step import load_step, peak
from teraio.profiler.errors import UsageError


def trace():
    """A spike at op 5 that one of the weights can make room for."""
    return make_trace(
        12,
        [
            T(1, 8 * MIB, "0r 11r", kind="parameter", name="embed.weight"),
            T(2, 4 * MIB, "1r 10rw", kind="parameter", name="head.weight"),
            T(3, MIB // 2, "0r 11r", kind="buffer", name="mask"),
            T(4, 2 * MIB, " ".join(f"{k}r" for k in range(12)), kind="buffer", name="busy"),
            T(5, 2 * MIB, kind="other", name="dead"),
            T(6, 2 * MIB, "0r 11r", kind="parameter", name="pinned"),
            T(7, MIB, "7w 9r", 7, 9),
            T(8, 8 * MIB, "5w", 5, 5),
        ],
        durations=10_000_000,
        pinned=(6,),
    )


STEP = load_step(trace())
PEAK = peak(STEP)


def planned(memory_bytes=PEAK - 6 * MIB, **rules):
    return make_plan(
        trace(),
        sha256="",
        memory_bytes=memory_bytes,
        hardware=ASSUMED,
        or_minimum=True,
        controls=Controls(**rules),
    )


def explained(name, plan):
    return explain(STEP, plan, find_tensor(STEP, name))


@pytest.mark.parametrize(
    ("name", "rules", "reason"),
    [
        ("pinned", {}, "pinned"),
        ("dead", {}, "unused"),
        ("busy", {}, "never idle"),
        ("embed.weight", {"keep": ("embed",)}, "kept"),
        ("mask", {}, "too small"),
        ("head.weight", {"never_ssd": ("head",)}, "no tier"),
        ("7", {}, "not over budget"),
        ("embed.weight", {}, "chosen"),
        ("head.weight", {}, "not needed"),
    ],
)
def test_every_reason_there_is(name, rules, reason):
    found = explained(name, planned(**rules))
    assert found.reason == reason
    assert all(row.reason != "chosen" for row in found.intervals) == (reason != "chosen")


def test_the_row_of_an_interval_that_is_used():
    plan = planned()
    found = explained("embed.weight", plan)
    assert (found.id, found.kind, found.nbytes, found.uses) == (1, "parameter", 8 * MIB, 2)
    (row,) = found.intervals
    assert (row.after_op, row.after_name) == (0, "aten.op0")
    assert (row.needed_by_op, row.needed_by_name, row.next_step) == (11, "aten.op4", False)
    assert row.idle_ns == 10 * 10_000_000
    (cost,) = row.costs
    assert (cost.tier, cost.write_ns) == ("ssd", 0)
    assert (row.over_ops, row.relieved_bytes, row.relieved_op) == (1, 6 * MIB, 5)
    assert row.rank == 1
    offload, prefetch = plan.actions
    assert row.move.tier == "ssd"
    assert not row.move.write
    assert (row.move.after_op, row.move.gone_by_op) == (offload.after_op, offload.gone_by_op)
    assert row.move.back_after_op == prefetch.after_op
    assert row.move.needed_by_op == prefetch.needed_by_op


def test_what_is_not_needed_has_its_place():
    found = explained("head.weight", planned())
    inside, wrapping = found.intervals
    assert (inside.reason, inside.relieved_bytes, inside.rank) == ("not needed", 4 * MIB, 2)
    assert (wrapping.reason, wrapping.rank, wrapping.next_step) == ("not over budget", None, True)
    assert found.ranked == 2


def test_a_tensor_that_stays_still_shows_what_it_would_relieve():
    found = explained("embed.weight", planned(keep=("embed",)))
    (row,) = found.intervals
    assert (row.reason, row.rank, row.move) == ("kept", None, None)
    assert row.relieved_bytes > 0
    assert row.costs
    assert explained("head.weight", planned(never_ssd=("head",))).intervals[0].costs == ()


def test_in_a_step_that_fits_memory_is_never_over():
    found = explained("embed.weight", planned(PEAK))
    assert found.reason == "not over budget"
    assert found.ranked == 0


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("1", 1),
        ("7", 7),
        ("embed.weight", 1),
        ("^head", 2),
        ("op0 in layers.7", 7),
        ("activation:.*layers.5", 8),
    ],
)
def test_a_tensor_is_found_by_id_name_or_pattern(text, identity):
    assert STEP.tensors[find_tensor(STEP, text)].id == identity


def test_a_whole_name_comes_before_a_pattern():
    step = load_step(make_trace(2, [T(1, 1, "0r", name="w"), T(2, 1, "0r", name="w.grad")]))
    assert find_tensor(step, "w") == 0


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("99", "no tensor is `99`", "teraio inspect"),
        ("head.weigth", "no tensor is", "`head.weight`"),
        ("EMBED", "no tensor is", "`embed.weight`"),
        ("weight", "2 tensors are `weight`:\n  1  embed.weight\n  2  head.weight", "by its id"),
        ("(", "not a regular expression", ""),
        ("", "8 tensors are ``", "by its id"),
    ],
)
def test_a_tensor_that_cannot_be_meant(text, words, hint):
    with pytest.raises(UsageError) as caught:
        find_tensor(STEP, text)
    assert words in str(caught.value)
    assert hint in caught.value.hint


def test_many_that_match_are_counted():
    step = load_step(make_trace(2, [T(k, 1, "0r", name=f"w{k}") for k in range(9)]))
    with pytest.raises(UsageError, match=r"9 tensors are `w`(.|\n)*and 4 more"):
        find_tensor(step, "w")


@examples(30)
@given(traces(), hardware(), st.sampled_from([0, 0.3, 0.8, 1]), st.sampled_from([0, 16 * MIB]))
def test_the_moves_of_a_plan_are_those_explained(own, channels, share, host_bytes):
    step = load_step(own)
    plan = make_plan(
        own,
        sha256="",
        memory_bytes=max(1, int(share * peak(step))),
        host_bytes=host_bytes,
        hardware=channels,
        or_minimum=True,
        policy="greedy",
        controls=Controls(min_tensor_bytes=MIB, keep=(r"layers\.1",)),
    )
    moves = []
    for index, tensor in enumerate(step.tensors):
        found = explain(step, plan, index)
        moves += [(tensor.id, r.move.after_op, r.move.tier) for r in found.intervals if r.move]
        assert (found.reason == "chosen") == any(row.move for row in found.intervals)
        assert all(row.idle_ns >= 0 for row in found.intervals)
    assert sorted(moves) == sorted(
        (a.tensor, a.after_op, a.to) for a in plan.actions if isinstance(a, Offload)
    )


def test_a_move_that_starts_late_is_found_in_its_interval():
    plan = planned()
    offload, prefetch = plan.actions
    late = replace(plan, actions=(replace(offload, after_op=3, gone_by_op=4), prefetch))
    (row,) = explained("embed.weight", late).intervals
    assert (row.after_op, row.move.after_op) == (0, 3)
