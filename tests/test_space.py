"""Free bytes: nothing overlaps, everything comes back, and room that is there can be had."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teraio.executor.stores.base import Extent
from teraio.executor.stores.space import FreeList, Space, round_up
from teraio.profiler.errors import StorageError

GRANULE = 16


def _blocks(extent: Extent) -> list[tuple[int, int]]:
    """The granules an extent holds, as (volume, granule number)."""
    return [
        (piece.volume, number)
        for piece in extent.pieces
        for number in range(
            piece.offset // GRANULE, (piece.offset + round_up(piece.nbytes, GRANULE)) // GRANULE
        )
    ]


@given(
    capacities=st.lists(st.integers(0, 40).map(lambda n: n * GRANULE), min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=40),
)
def test_extents_never_overlap_and_everything_freed_comes_back(
    capacities: list[int], steps: list[tuple[bool, int]]
) -> None:
    space = Space(capacities, granule=GRANULE, piece_bytes=4 * GRANULE)
    live: list[Extent] = []
    for is_free, number in steps:
        if is_free and live:
            space.free(live.pop(number % len(live)))
            continue
        room = space.free_bytes
        extent = space.allocate(number)
        assert (extent is not None) == (round_up(number, GRANULE) <= room)
        if extent is not None:
            live.append(extent)
            assert space.free_bytes == room - round_up(number, GRANULE)
        blocks = [block for one in live for block in _blocks(one)]
        assert len(set(blocks)) == len(blocks)
        assert all(0 <= at < capacities[volume] // GRANULE for volume, at in blocks)
    for extent in live:
        space.free(extent)
    assert space.free_bytes == sum(capacities)


@given(st.integers(0, 2000))
def test_pieces_cover_the_buffer_once_and_are_no_larger_than_asked(nbytes: int) -> None:
    space = Space([4096, 4096], granule=GRANULE, piece_bytes=100)
    extent = space.allocate(nbytes)
    assert extent is not None
    ends = [0, *(piece.start + piece.nbytes for piece in extent.pieces)]
    assert [piece.start for piece in extent.pieces] == ends[:-1]
    assert ends[-1] == extent.nbytes == nbytes
    assert all(piece.nbytes <= 112 for piece in extent.pieces)


@given(st.permutations(range(12)))
def test_freed_ranges_grow_together(order: list[int]) -> None:
    free = FreeList(12 * GRANULE)
    taken = [free.take(GRANULE) for _ in order]
    assert free.holes == ()
    for index in order:
        offset = taken[index]
        assert offset is not None
        free.give(offset, GRANULE)
        holes = free.holes
        assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(holes))
    assert free.holes == ((0, 12 * GRANULE),)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 16), (16, 16), (0, 32), (48, 32), (32, 64)])
def test_a_range_that_is_free_or_outside_cannot_be_given_back(offset: int, nbytes: int) -> None:
    free = FreeList(64)
    assert free.take(64) == 0
    free.give(16, 16)
    if (offset, nbytes) == (0, 16):
        free.give(offset, nbytes)
    with pytest.raises(ValueError, match="are not taken"):
        free.give(offset, nbytes)


def test_pieces_go_round_robin_over_volumes() -> None:
    space = Space([1024, 1024, 1024], granule=GRANULE, piece_bytes=64)
    extents = [space.allocate(64) for _ in range(2)] + [space.allocate(4 * 64)]
    assert [piece.volume for e in extents if e for piece in e.pieces] == [0, 1, 2, 0, 1, 2]


def test_a_full_volume_leaves_its_turn_to_the_next() -> None:
    space = Space([64, 1024], granule=GRANULE, piece_bytes=64)
    extent = space.allocate(4 * 64)
    assert extent is not None
    assert [piece.volume for piece in extent.pieces] == [0, 1, 1, 1]


def test_scattered_room_is_used_to_the_last_byte() -> None:
    space = Space([10 * GRANULE], granule=GRANULE, piece_bytes=8 * GRANULE)
    singles = [space.allocate(GRANULE) for _ in range(10)]
    for extent in singles[::2]:
        assert extent is not None
        space.free(extent)
    scattered = space.allocate(5 * GRANULE)
    assert scattered is not None
    assert len(scattered.pieces) == 5
    assert space.free_bytes == 0


def test_growth_adds_room_at_the_end() -> None:
    space = Space([0], granule=GRANULE, piece_bytes=64)
    assert space.allocate(1) is None
    space.grow(0, 64)
    assert space.allocate(64) is not None
    assert space.capacity_bytes == space.capacity_of(0) == 64


def test_an_extent_is_freed_once_and_only_where_it_was_allocated() -> None:
    first, second = (Space([64], granule=GRANULE, piece_bytes=64) for _ in range(2))
    mine, other = first.allocate(16), second.allocate(16)
    assert mine is not None
    assert other is not None
    with pytest.raises(StorageError, match="is not allocated in this store"):
        first.free(other)
    first.free(mine)
    for use in (first.free, first.require):
        with pytest.raises(StorageError, match=f"extent {mine.id} of 16 bytes is not allocated"):
            use(mine)
    assert first.free_bytes == 64


def test_a_finalizer_may_free_while_memory_is_being_allocated() -> None:
    space = Space([64 * GRANULE], granule=GRANULE, piece_bytes=GRANULE)

    class Owner:
        def __init__(self) -> None:
            self.cycle = self

    def owned() -> None:
        extent = space.allocate(16 * GRANULE)
        assert extent is not None
        weakref.finalize(Owner(), space.free, extent)

    owned()
    threshold = gc.get_threshold()
    gc.set_threshold(1)  # collect at every chance, so also inside `allocate`
    try:
        second = space.allocate(32 * GRANULE)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert second is not None
    assert space.free_bytes == 32 * GRANULE
