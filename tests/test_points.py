"""The points of a sweep, and which has more than which."""

from __future__ import annotations

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from teraio.planner.hardware import ASSUMED
from teraio.planner.points import MOST_POINTS, Axes, neighbours_below, points_of
from teraio.profiler.errors import UsageError


def test_every_combination_in_the_order_given():
    points = points_of(Axes((8, 4), drives=(2, 1), ssd_read=(10, None), host_link=(7,)), ASSUMED)
    assert [
        (p.memory_bytes, p.hardware.ssd.drives, p.hardware.ssd.read_bytes_per_s) for p in points
    ] == [
        (memory, drives, read * drives)
        for memory in (8, 4)
        for drives in (2, 1)
        for read in (10, ASSUMED.ssd.read_bytes_per_s)
    ]
    assert {p.hardware.host_link.to_gpu_bytes_per_s for p in points} == {7}
    assert {p.host_bytes for p in points} == {0}


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (Axes(()), "no value is given for the memory"),
        (Axes((5,), ssd_read=()), "no value is given for what an SSD reads"),
        (Axes((0,)), "the memory must be more than zero: 0"),
        (Axes((5,), host_bytes=(-1,)), "the host memory must be zero or more: -1"),
        (Axes((5,), drives=(1, 0)), "number of SSDs must be more than zero: 0"),
        (Axes((5,), host_link=(-3,)), "what the host link gives must be more than zero: -3"),
        (Axes((5, 6, 5)), "a value for the memory is given twice: 5"),
        (Axes((5,), ssd_write=(3, 3)), "a value for what an SSD writes is given twice: 3"),
        (
            Axes(tuple(range(1, 102)), tuple(range(101))),
            f"10,201 combinations are too many: at most {MOST_POINTS:,}",
        ),
    ],
)
def test_refused(axes, words):
    with pytest.raises(UsageError, match=words):
        points_of(axes, ASSUMED)


def test_as_many_as_are_allowed():
    axes = Axes(tuple(range(1, 101)), tuple(range(100)))
    assert len(points_of(axes, ASSUMED)) == MOST_POINTS


@examples(100)
@given(st.sets(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=20))
def test_neighbours_below_lead_to_all_that_have_no_more(amounts):
    order = sorted(amounts)
    below = neighbours_below(order)
    for index, own in enumerate(order):
        less = {
            other
            for other in order
            if other != own and all(a <= b for a, b in zip(other, own, strict=True))
        }
        reached, rest = set(), list(below[index])
        while rest:
            other = rest.pop()
            reached.add(order[other])
            rest += below[other]
        assert reached == less
        nearest = {order[other] for other in below[index]}
        assert not any(
            a != b and all(x <= y for x, y in zip(a, b, strict=True))
            for a in nearest
            for b in nearest
        )
