"""Which intervals are taken together, and the cuts that are inside them."""

from __future__ import annotations

from problems import problem_of
from traces import MIB, T, make_trace

from teraio.planner.cuts import choose_cuts
from teraio.planner.lots import Movable


def lots_of(tensors, n_ops, tight_ops, *, count=1000, by_size=False, **options):
    """Return the lots of a step that is over its budget at `tight_ops` only."""
    trace = make_trace(n_ops, tensors, workspace=dict.fromkeys(tight_ops, 1 << 30))
    problem = problem_of(trace, 1 << 30, **options)
    cuts = choose_cuts(problem, count)
    return Movable(problem).lots(cuts, by_size=by_size), problem


def test_cuts_inside_an_interval_are_those_after_its_use_ends_and_before_the_next_begins():
    (lot,), _ = lots_of([T(1, 4 * MIB, "1w 4r", 1, 4)], 6, [2])
    # events 4 to 7: starts and ends of ops 2 and 3
    assert lot.spans == ((4, 8),)
    assert (lot.clean, lot.size, lot.filled) == (False, 4 * MIB, 1.0)
    assert lot.copies == ((0,),)


def test_intervals_without_a_tight_cut_are_left_out_unless_they_can_make_a_copy():
    (lot,), _ = lots_of([T(1, 4 * MIB, "0w 2r 5r 7r", 0, 7)], 8, [3])
    assert lot.spans == ((2, 4), (6, 10))
    (lot,), _ = lots_of([T(1, 4 * MIB, "0w 2rw 5r 7r", 0, 7)], 8, [3])
    assert lot.spans == ((6, 10),)
    (lot,), _ = lots_of([T(1, 4 * MIB, "0r 2r 5r")], 8, [3])
    assert lot.spans == ((6, 10),)
    assert lots_of([T(1, 4 * MIB, "1w 4r", 1, 4)], 6, [4])[0] == []


def test_an_interval_may_go_on_in_the_next_step():
    (lot,), _ = lots_of([T(1, 4 * MIB, "1r 4r")], 6, [0])
    assert lot.spans == ((10, 14),)
    assert lot.clean


def test_a_family_is_in_the_order_in_which_it_follows_the_write():
    # op 3 writes: the intervals 3 to 1 of the next step, and then 1 to 3
    (lot,), problem = lots_of([T(1, 4 * MIB, "1r 3rw")], 6, [2, 4])
    assert [problem.intervals[k].after_op for k in lot.copies[0]] == [3, 1]
    assert lot.spans == ((8, 14), (16, 18))


def test_alike_families_are_taken_together_by_size_only_if_told():
    tensors = [T(1, 4 * MIB, "1w 4r", 1, 4), T(2, 4 * MIB - 1, "1w 4r", 1, 4),
               T(3, 2 * MIB, "1w 4r", 1, 4), T(4, 4 * MIB, "1w 4r", 1, 4)]  # fmt: skip
    (lot,), _ = lots_of(tensors, 6, [2])
    assert lot.size == 14 * MIB
    assert lot.filled == (4 * MIB - 1) / (4 * MIB)
    assert lot.copies == ((0,), (1,), (2,), (3,))
    found, _ = lots_of(tensors, 6, [2], by_size=True)
    assert [lot.copies for lot in found] == [((0,), (3,)), ((1,),), ((2,),)]


def test_tensors_that_may_go_nowhere_are_left_out():
    tensors = [T(1, 4 * MIB, "1w 4r", 1, 4)]
    assert lots_of(tensors, 6, [2], ssd=False)[0] == []
    (lot,), _ = lots_of(tensors, 6, [2], host_bytes=1, never_ssd=frozenset([0]))
    assert lot.tiers == ("host",)


def test_few_cuts_are_where_demand_is_largest():
    trace = make_trace(100, [T(1, 4 * MIB, "0w 99r", 0, 99)], workspace={50: 9 * MIB, 51: 8 * MIB})
    problem = problem_of(trace, 10 * MIB)
    cuts = choose_cuts(problem, 10)
    assert 100 in cuts.events
    assert len(cuts.events) <= 20
    assert cuts.window_ns.sum() == problem.step.period_ns
    assert (cuts.window_ns >= 0).all()
    assert cuts.excess.max() == 3 * MIB
