import pytest
from problems import FAST, problem_of, tiers
from traces import MIB, T, make_trace

from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.planner.policies.flexgen import flexgen
from teraio.planner.problem import CannotFitError

A, B, C = 1, 2, 9


def waits(identity, first, last, mib=4):
    return T(identity, mib * MIB, f"{first}w {last}r", alloc=first, free=last)


def test_a_class_that_is_not_written_is_preferred():
    trace = make_trace(
        20,
        [T(A, 4 * MIB, "0r 19r", kind="parameter"), waits(B, 0, 19), waits(C, 10, 10)],
    )
    assert set(tiers(flexgen(problem_of(trace, 8 * MIB)))) == {A}


def test_the_tiers_share_a_class_by_their_rates():
    """Four tensors must be away; host memory is three times as fast, so it gets three of them."""
    waiting = [waits(k, 0, 19) for k in range(1, 5)]
    trace = make_trace(20, [*waiting, waits(C, 10, 10, 16)], durations=1)
    rates = Hardware(Ssd(10**9, 10**9, 0), HostLink(3 * 10**9, 3 * 10**9), {})
    answer = flexgen(problem_of(trace, 16 * MIB, host_bytes=1 << 40, hardware=rates))
    assert sorted(tiers(answer).values()) == ["host", "host", "host", "ssd"]
    assert answer.status == "optimal"
    assert answer.solver


def test_no_more_of_a_class_than_is_needed_the_largest_first():
    trace = make_trace(20, [waits(1, 0, 19, 8), waits(2, 1, 18, 4), waits(C, 10, 10, 8)])
    assert set(tiers(flexgen(problem_of(trace, 12 * MIB, hardware=FAST)))) == {1}
    assert set(tiers(flexgen(problem_of(trace, 8 * MIB, hardware=FAST)))) == {1, 2}


def test_shares_grow_until_whole_tensors_suffice():
    """512 bytes are over at op 10, where the only idle tensor is the last of its class."""
    small = T(1, MIB + 512, "0w 14r", alloc=0, free=14, kind="other")
    large = T(2, 64 * MIB, "15w 25r", alloc=15, free=25, kind="other")
    trace = make_trace(30, [small, large, waits(C, 10, 10, 64)])
    assert set(tiers(flexgen(problem_of(trace, 65 * MIB, hardware=FAST)))) == {1, 2}


def test_without_shares_that_fit_it_says_so():
    trace = make_trace(20, [waits(A, 0, 19), waits(C, 10, 10)])
    with pytest.raises(CannotFitError, match="infeasible"):
        flexgen(problem_of(trace, 3 * MIB))
