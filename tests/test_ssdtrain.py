from dataclasses import replace

import pytest
from problems import FAST, prefetches, problem_of, tiers
from traces import MIB, T, make_trace, training_trace

from teraio.planner.hardware import with_rates
from teraio.planner.policies.ssdtrain import ssdtrain
from teraio.planner.problem import CannotFitError

A, B, C, D = 1, 2, 3, 4


def waits(identity, first, last, mib=4, **kind):
    return T(identity, mib * MIB, f"{first}w {last}r", alloc=first, free=last, **kind)


def test_only_activations_move_and_only_to_the_ssd():
    parameter = T(B, 4 * MIB, "0r 19r", kind="parameter")
    trace = make_trace(20, [waits(A, 0, 19), parameter, waits(C, 10, 10)])
    problem = problem_of(trace, 8 * MIB, host_bytes=1 << 40, hardware=FAST)
    assert tiers(ssdtrain(problem)) == {A: "ssd"}
    with pytest.raises(CannotFitError, match="still needs"):
        ssdtrain(replace(problem, planned_bytes=4 * MIB))


def test_those_that_wait_for_the_backward_pass_over_an_excess():
    """Ops 0 to 9 are the forward pass. B is back before it ends, D waits where nothing is over."""
    trace = make_trace(
        20,
        [waits(A, 0, 19), waits(B, 1, 8), waits(C, 6, 6, mib=8), waits(D, 9, 15)],
    )
    assert set(tiers(ssdtrain(problem_of(trace, 12 * MIB, hardware=FAST)))) == {A}


def test_a_tensor_whose_store_is_in_flight_is_forwarded():
    """A store takes 4 ops and a load none: of B, written at op 8 and needed at op 11, it would
    end at op 13; of A at op 5."""
    trace = make_trace(20, [waits(A, 0, 19), waits(B, 8, 11), waits(C, 10, 10)])
    slow = with_rates(FAST, ssd_write=MIB * 1000)
    assert set(tiers(ssdtrain(problem_of(trace, 8 * MIB, hardware=slow)))) == {A}
    fast = problem_of(trace, 8 * MIB, hardware=FAST)
    assert set(tiers(ssdtrain(fast))) == {A, B}


def test_loads_are_in_the_order_of_need_and_in_time():
    """A load takes 4 ops: the one needed at op 19 starts at op 15, the one before it at op 11."""
    trace = make_trace(20, [waits(A, 0, 19), waits(B, 1, 19), waits(C, 9, 9, mib=4)])
    slow = with_rates(FAST, ssd_read=MIB * 1000)
    answer = ssdtrain(problem_of(trace, 8 * MIB, hardware=slow))
    assert sorted(a.after_op for a in prefetches(answer)) == [10, 14]


def test_without_the_ssd_it_says_so():
    with pytest.raises(CannotFitError, match="SSD"):
        ssdtrain(problem_of(training_trace(2), MIB, host_bytes=1 << 40, ssd=False))
