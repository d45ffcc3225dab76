"""Lists are cut into consecutive groups, none larger than it must be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from teraio.profiler.partition import SHARE, SMALLEST, partition

sizes_of = st.lists(
    st.one_of(st.integers(0, 64), st.integers(0, 8 * SMALLEST), st.just(SMALLEST)), max_size=80
)


@given(sizes_of)
def test_groups_are_the_list_in_order(sizes: list[int]) -> None:
    groups = partition(sizes)
    assert [size for group in groups for size in sizes[group]] == sizes
    assert all(sizes[group] for group in groups)
    assert all(group.step is None for group in groups)


@given(sizes_of)
def test_a_group_is_within_the_limit_or_one_entry(sizes: list[int]) -> None:
    limit = max(sum(sizes) // SHARE, SMALLEST)
    for group in partition(sizes):
        assert sum(sizes[group]) <= limit or len(sizes[group]) == 1


@given(sizes_of)
def test_neighbours_could_not_be_one_group(sizes: list[int]) -> None:
    limit = max(sum(sizes) // SHARE, SMALLEST)
    groups = partition(sizes)
    for one, other in itertools.pairwise(groups):
        assert sum(sizes[one]) + sizes[other.start] > limit


@given(sizes_of)
def test_a_long_list_has_few_groups(sizes: list[int]) -> None:
    assert len(partition(sizes)) <= 2 * SHARE + 1


@given(st.lists(st.integers(0, SMALLEST // 4), max_size=4))
def test_what_is_small_stays_whole(sizes: list[int]) -> None:
    assert len(partition(sizes)) == (1 if sizes else 0)


def test_by_hand() -> None:
    mib = SMALLEST
    assert partition([]) == []
    assert partition([0]) == [slice(0, 1)]
    assert partition([mib, mib]) == [slice(0, 1), slice(1, 2)]
    assert partition([3 * mib, 1, 1, mib]) == [slice(0, 1), slice(1, 3), slice(3, 4)]
    assert partition([2 * mib] * 32) == [slice(i, i + 2) for i in range(0, 32, 2)]
