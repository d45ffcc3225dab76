"""G10's planner on steps small enough to follow by hand."""

from dataclasses import replace

from problems import FAST, problem_of, tiers
from traces import MIB, T, brief, inner, make_trace

from teraio.planner.hardware import with_rates
from teraio.planner.plan import Offload, Prefetch
from teraio.planner.policies.g10 import g10
from teraio.planner.policies.teraio2025 import teraio2025

A, B, C, D = 1, 2, 3, 4


def test_the_area_counts_where_teraio_ranks_by_time():
    """Over are ops 5 to 8. A: 12 MiB for three of them, 36; B: 4 MiB for four, 16.

    B is needed as well, for op 8; TERAIO's listing begins with B and needs no more.
    """
    life = [T(A, 12 * MIB, "0w 4r 8r 19r", alloc=0, free=19), inner(B, 4, 0, 12)]
    trace = make_trace(20, [*life, inner(C, 4, 5, 8)])
    problem = problem_of(trace, 16 * MIB, hardware=FAST)
    assert set(tiers(g10(problem))) == {A, B}
    assert set(tiers(teraio2025(problem))) == {B}


def test_an_interval_too_short_for_the_ssd_goes_to_host_memory():
    """8 ms there, 8 ms back and 4 ms more do not fit 18 ms; to host memory next to nothing does."""
    trace = make_trace(20, [inner(A, 8, 0, 19), brief(C, 4, 10)])
    slow = with_rates(FAST, ssd_read=MIB * 1000, ssd_write=MIB * 1000)
    problem = problem_of(trace, 8 * MIB, host_bytes=1 << 40, hardware=slow)
    assert tiers(g10(problem)) == {A: "host"}
    enough = with_rates(slow, ssd_read=2 * MIB * 1000)
    assert tiers(g10(replace(problem, hardware=enough))) == {A: "ssd"}


def test_host_memory_is_for_what_the_ssd_would_have_later_than_it_could():
    trace = make_trace(60, [inner(A, 8, 0, 59), inner(B, 4, 1, 58), brief(C, 12, 40)])
    slow = with_rates(FAST, ssd_write=MIB * 1000)
    problem = problem_of(trace, 12 * MIB, hardware=slow)
    assert tiers(g10(problem)) == {A: "ssd", B: "ssd"}
    assert tiers(g10(replace(problem, host_bytes=1 << 40))) == {A: "ssd", B: "host"}


def test_what_is_left_is_evicted_and_fetched_on_demand():
    trace = make_trace(20, [inner(A, 4, 0, 19), inner(B, 4, 1, 18), brief(C, 4, 10)])
    slow = with_rates(FAST, ssd_read=10**7, ssd_write=10**7)
    answer = g10(problem_of(trace, 8 * MIB, hardware=slow))
    assert answer.actions == (
        Offload(A, "ssd", 0, 10, write=True),
        Prefetch(A, "ssd", 18, 19),
    )
