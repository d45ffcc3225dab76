"""TERAIO's Algorithm 1 on steps small enough to follow by hand."""

from dataclasses import replace

import pytest
from problems import FAST, offloads, prefetches, problem_of, tiers
from traces import MIB, T, brief, inner, make_trace

from teraio.planner.hardware import with_rates
from teraio.planner.plan import Offload, Prefetch
from teraio.planner.policies.greedy import greedy
from teraio.planner.policies.teraio2025 import teraio2025
from teraio.planner.problem import CannotFitError

A, B, C, D = 1, 2, 3, 4


def test_the_benefit_is_not_clipped_to_the_excess():
    """4 MiB are over: the listing moves 40 MiB for it, as only time counts, and the larger wins."""
    trace = make_trace(20, [inner(A, 40, 0, 19), inner(B, 4, 0, 19), brief(C, 4, 10)])
    problem = problem_of(trace, 44 * MIB, hardware=FAST)
    assert set(tiers(teraio2025(problem))) == {A}
    assert set(tiers(greedy(problem))) == {B}


def test_the_longer_time_over_the_budget_counts_and_not_the_size():
    """Over are ops 5 to 7, by 4 MiB. A (12 MiB) is idle at ops 5 and 6 only, B at all three."""
    life = [T(A, 12 * MIB, "0w 4r 7r 19r", alloc=0, free=19), inner(B, 4, 0, 12)]
    trace = make_trace(20, [*life, inner(C, 4, 5, 7), brief(D, 2, 6)])
    problem = problem_of(trace, 16 * MIB + 2 * MIB, hardware=FAST)
    assert set(tiers(teraio2025(problem))) == {B}


def test_a_prefetch_starts_earlier_where_memory_allows():
    trace = make_trace(20, [inner(A, 4, 0, 19), brief(C, 4, 10)])
    assert teraio2025(problem_of(trace, 4 * MIB, hardware=FAST)).actions == (
        Offload(A, "ssd", 0, 10, write=True),
        Prefetch(A, "ssd", 10, 19),
    )


def test_host_memory_is_for_what_the_ssd_could_not_begin_for_ten_ops():
    """4 MiB take the SSD 14 ops: B, written one op after A, would wait 13 of them."""
    trace = make_trace(60, [inner(A, 4, 0, 59), inner(B, 4, 1, 58), brief(C, 8, 40)])
    slow = with_rates(FAST, ssd_write=300_000_000)
    alone = problem_of(trace, 8 * MIB, hardware=slow)
    assert tiers(teraio2025(alone)) == {A: "ssd", B: "ssd"}
    both = replace(alone, host_bytes=1 << 40)
    assert tiers(teraio2025(both)) == {A: "ssd", B: "host"}
    little = replace(alone, host_bytes=3 * MIB)
    assert tiers(teraio2025(little)) == {A: "ssd", B: "ssd"}
    medium = with_rates(slow, ssd_write=600_000_000)
    assert tiers(teraio2025(replace(both, hardware=medium))) == {A: "ssd", B: "ssd"}


def test_what_no_bandwidth_suffices_for_is_fetched_by_the_op_that_needs_it():
    trace = make_trace(20, [inner(A, 4, 0, 19), brief(C, 4, 10)])
    slow = with_rates(FAST, ssd_read=10**7, ssd_write=10**7)
    answer = teraio2025(problem_of(trace, 4 * MIB, hardware=slow))
    assert answer.actions == (
        Offload(A, "ssd", 0, 10, write=True),
        Prefetch(A, "ssd", 18, 19),
    )


def test_tensors_under_two_million_bytes_move_only_if_they_must():
    small = T(A, 1_900_000, "0w 19r", alloc=0, free=19)
    trace = make_trace(20, [small, inner(B, 2, 2, 18), brief(C, 1, 10)])
    problem = problem_of(trace, 4 * MIB, hardware=FAST)
    assert set(tiers(teraio2025(problem))) == {B}
    tight = replace(problem, planned_bytes=3 * MIB - 512)
    assert set(tiers(teraio2025(tight))) == {A, B}


def test_without_a_way_to_fit_it_says_so():
    trace = make_trace(20, [inner(A, 4, 0, 19), brief(C, 4, 10)])
    with pytest.raises(CannotFitError, match="512 B over"):
        teraio2025(problem_of(trace, 4 * MIB - 512))
    with pytest.raises(CannotFitError):
        teraio2025(problem_of(trace, 4 * MIB, ssd=False))


def test_transfers_that_are_in_the_way_are_seen():
    """One tensor's read takes the SSD's time right before op 19: the other's must start before."""
    trace = make_trace(
        40, [inner(A, 8, 0, 39), inner(B, 8, 1, 39), brief(C, 16, 8), brief(D, 16, 25)]
    )
    slow = with_rates(FAST, ssd_read=8 * MIB * 1000 // 5)
    problem = problem_of(trace, 16 * MIB, hardware=slow)
    answer = teraio2025(problem)
    assert len(offloads(answer)) == 2
    assert {a.after_op for a in prefetches(answer)} == {25}
