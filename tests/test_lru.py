"""Eviction on demand, on steps small enough to follow by hand."""

from problems import offloads, problem_of
from traces import MIB, T, make_trace

from teraio.planner.plan import Offload, Prefetch
from teraio.planner.policies.lru import lru

A, B, C = 1, 2, 3


def inner(identity, mib, uses):
    words = uses.split()
    first, last = (int(word.rstrip("rw")) for word in (words[0], words[-1]))
    return T(identity, mib * MIB, uses, alloc=first, free=last)


def test_the_victim_is_the_least_recently_used_though_it_is_needed_first():
    trace = make_trace(20, [inner(A, 4, "0w 9r"), inner(B, 4, "1w 19r"), inner(C, 4, "5w 5r")])
    assert lru(problem_of(trace, 8 * MIB)).actions == (
        Offload(A, "ssd", 4, 5, write=True),
        Prefetch(A, "ssd", 8, 9),
    )


def test_a_use_makes_a_tensor_recent():
    trace = make_trace(20, [inner(A, 4, "0w 4r 9r"), inner(B, 4, "1w 19r"), inner(C, 4, "6w 6r")])
    assert lru(problem_of(trace, 8 * MIB)).actions == (
        Offload(B, "ssd", 5, 6, write=True),
        Prefetch(B, "ssd", 18, 19),
    )


def test_each_fetch_may_evict_the_next():
    """Two tensors that fit one at a time, used in turn; once both are written, they are dropped."""
    trace = make_trace(12, [inner(A, 4, "0w 4r 8r"), inner(B, 4, "2w 6r 10r")])
    moved = [(a.tensor, a.after_op, a.write) for a in offloads(lru(problem_of(trace, 4 * MIB)))]
    assert moved == [(A, 1, True), (B, 3, True), (A, 4, False), (B, 6, False)]


def test_a_steady_step_begins_with_what_the_last_one_left_away():
    """Persistent A and B take turns: B is away at the step's end, A at its begin."""
    trace = make_trace(10, [T(A, 4 * MIB, "1r 4rw"), T(B, 4 * MIB, "6r 8rw")])
    answer = lru(problem_of(trace, 4 * MIB))
    assert [(a.tensor, a.after_op, a.gone_by_op) for a in offloads(answer)] == [
        (B, 0, 1),
        (A, 5, 6),
    ]


def test_host_memory_is_taken_first_and_then_the_ssd():
    trace = make_trace(20, [inner(A, 4, "0w 18r"), inner(B, 4, "1w 19r"), inner(C, 8, "9w 9r")])
    for host_mib, places in ((4, ["host", "ssd"]), (8, ["host", "host"]), (0, ["ssd", "ssd"])):
        answer = lru(problem_of(trace, 8 * MIB, host_bytes=host_mib * MIB))
        assert [a.to for a in offloads(answer)] == places
