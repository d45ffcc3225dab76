from contextlib import suppress
from dataclasses import replace

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from problems import checked_plan
from traces import MIB, T, hardware, make_trace, traces

from teraio.planner.hardware import ASSUMED
from teraio.planner.plan import Offload, Prefetch
from teraio.planner.problem import Answer, CannotFitError, Problem
from teraio.planner.step import Interval, idle_intervals, load_step
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows

A, B, C = 1, 2, 3


def problem_of(trace, memory_bytes, host_bytes=0, **options):
    step = load_step(trace)
    intervals = tuple(idle_intervals(step, MIB))
    return Problem(step, intervals, memory_bytes, host_bytes, ASSUMED, **options)


def waits(identity, uses, mib=4, **life):
    life = life or {"alloc": int(uses.split("w")[0]), "free": int(uses.split()[-1][:-1])}
    return T(identity, mib * MIB, uses, **life)


def use_all(problem, tier="ssd", issue_after=None):
    chosen = [Chosen(k, tier, issue_after) for k in range(len(problem.intervals))]
    return fit_windows(problem, chosen)


def test_an_offload_is_due_as_late_as_memory_allows_and_the_oldest_first():
    trace = make_trace(
        12, [waits(A, "0w 11r"), waits(B, "1w 11r"), waits(C, "6w 6r"), waits(4, "8w 8r", mib=8)]
    )
    problem = problem_of(trace, 8 * MIB + 8 * MIB)
    assert use_all(problem) == (
        Offload(A, "ssd", 0, 10, write=True),
        Offload(B, "ssd", 1, 10, write=True),
        Prefetch(A, "ssd", 10, 11),
        Prefetch(B, "ssd", 10, 11),
    )
    actions = use_all(replace(problem, planned_bytes=8 * MIB))
    assert [a for a in actions if isinstance(a, Offload)] == [
        Offload(A, "ssd", 0, 6, write=True),
        Offload(B, "ssd", 1, 8, write=True),
    ]


def test_the_prefetch_needed_last_starts_later_where_memory_is_full():
    trace = make_trace(12, [waits(A, "0w 10r"), waits(B, "1w 11r"), waits(C, "6w 6r")])
    problem = problem_of(trace, 8 * MIB)
    actions = use_all(problem, issue_after=4)
    assert actions == (
        Offload(A, "ssd", 0, 4, write=True),
        Offload(B, "ssd", 1, 4, write=True),
        Prefetch(A, "ssd", 4, 10),
        Prefetch(B, "ssd", 6, 11),
    )


def test_what_wraps_past_the_end_of_the_step_is_away_on_both_sides():
    trace = make_trace(10, [T(A, 4 * MIB, "3rw 5r"), waits(B, "0w 1r"), waits(C, "8w 9r")])
    problem = problem_of(trace, 4 * MIB)
    assert problem.intervals == (Interval(0, 3, 5), Interval(0, 5, 13))
    actions = fit_windows(problem, [Chosen(1, "ssd", 11)])
    assert actions == (Prefetch(A, "ssd", 1, 3), Offload(A, "ssd", 5, 8, write=True))
    early = fit_windows(problem, [Chosen(1, "ssd", 6)])
    assert early == (Prefetch(A, "ssd", 1, 3), Offload(A, "ssd", 5, 6, write=True))


def test_without_enough_to_move_the_error_names_the_op_and_the_bytes():
    trace = make_trace(12, [waits(A, "0w 11r"), waits(B, "1w 11r"), waits(C, "6w 6r")])
    problem = problem_of(trace, 6 * MIB)
    with pytest.raises(CannotFitError, match=r"op 6 .* 8.00 MiB, 2.00 MiB over") as caught:
        fit_windows(problem, [Chosen(0, "ssd", None)])
    assert caught.value.hint
    with pytest.raises(CannotFitError, match=r"6.00 MiB over"):
        fit_windows(problem, [])


def test_only_the_first_use_of_a_copy_writes_and_a_drop_is_gone_at_once():
    trace = make_trace(14, [waits(A, "0w 5r 13r"), T(B, 4 * MIB, "6r 9r")])
    problem = problem_of(trace, 8 * MIB)
    actions = use_all(problem)
    assert [
        (a.tensor, a.after_op, a.gone_by_op, a.write) for a in actions if isinstance(a, Offload)
    ] == [
        (A, 0, 4, True),
        (A, 5, 6, False),
        (B, 6, 7, False),
        (B, 9, 10, False),
    ]
    alone = fit_windows(problem, [Chosen(1, "ssd", None)])
    assert alone[0] == Offload(A, "ssd", 5, 12, write=True)


def test_what_host_memory_has_no_room_for_goes_to_the_ssd_or_stays():
    trace = make_trace(12, [waits(A, "0w 8r"), waits(B, "1w 11r"), waits(C, "6w 6r")])
    problem = problem_of(trace, 12 * MIB, host_bytes=4 * MIB)
    assert {a.tensor: a.to for a in use_all(problem, "host") if isinstance(a, Offload)} == {
        A: "host",
        B: "ssd",
    }
    assert {a.tensor for a in use_all(replace(problem, ssd=False), "host")} == {A}
    assert {a.tensor for a in use_all(replace(problem, never_ssd=frozenset({1})), "host")} == {A}
    limited = replace(problem, host_bytes=0, ssd_write_bytes=4 * MIB)
    assert {a.tensor for a in use_all(limited)} == {A}


@st.composite
def choices(draw, n_intervals):
    indices = draw(st.permutations(range(n_intervals)))
    share = draw(st.sampled_from([1, 1, 0.7]))
    return [
        Chosen(
            index,
            draw(st.sampled_from(["ssd", "host"])),
            draw(st.none() | st.integers(0, 60)),
        )
        for index in indices
        if share == 1 or draw(st.floats(0, 1)) < share
    ]


@examples(60)
@given(
    traces(),
    hardware(),
    st.sampled_from([0, 0, 0.1, 0.3, 0.8]),
    st.sampled_from([0, 8 * MIB, 24 * MIB, 1 << 40]),
    st.data(),
)
def test_any_choice_gives_a_right_plan_or_an_error(trace, channels, share, host_bytes, data):
    def policy(problem):
        return Answer(fit_windows(problem, data.draw(choices(len(problem.intervals)))))

    with suppress(CannotFitError):
        checked_plan(trace, policy, share, hardware=channels, host_bytes=host_bytes)


@examples(30)
@given(traces(), st.sampled_from([0, 0.3]))
def test_with_every_interval_chosen_every_possible_budget_is_met(trace, share):
    checked_plan(trace, lambda problem: Answer(use_all(problem)), share)
