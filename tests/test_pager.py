"""Pages leave, come back, fail and die, one at a time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from manual import ManualEngine, content, filled, make_pager

from teraio.executor.page import Page
from teraio.executor.pager import SMALLEST_EVICTION, Pager
from teraio.executor.states import State
from teraio.profiler.errors import StorageError
from teraio.profiler.storages import StorageTable


def present(pager: Pager, storage: torch.UntypedStorage, table: StorageTable[Page]) -> bytes:
    page = table.block(storage)
    pager.make_present(page, [page])
    return content(storage)


class Sent:
    """A page of 3000 sevens in the ssd store."""

    def __init__(self) -> None:
        self.engine = ManualEngine()
        self.pager, self.table = make_pager(self.engine)
        self.storage = filled(3000, 7)
        self.page = self.table.block(self.storage)
        self.pager.offload(self.page, "ssd")
        self.engine.under_way[-1].complete()
        self.pager.poll()
        assert self.page.state is State.ABSENT

    def present(self) -> bytes:
        return present(self.pager, self.storage, self.table)


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_what_is_unchanged_is_dropped_and_not_written_again(sent: Sent) -> None:
    assert sent.present() == b"\7" * 3000
    sent.pager.offload(sent.page, "ssd")
    assert sent.page.state is State.ABSENT
    assert sent.pager.counters.offloaded == sent.pager.counters.dropped == {"ssd": 3000}
    assert sent.present() == b"\7" * 3000

    sent.pager.written(sent.page)
    sent.pager.offload(sent.page, "ssd")
    assert sent.page.state is State.WRITING


def test_another_tier_does_not_have_the_copy(sent: Sent) -> None:
    sent.present()
    sent.pager.offload(sent.page, "host")
    assert sent.page.state is State.WRITING
    assert sent.pager.stores["ssd"].kept == {}  # type: ignore[attr-defined]


def test_a_write_not_begun_is_taken_back() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine)
    storage = filled(600, 7)
    page = table.block(storage)
    pager.offload(page, "ssd")
    assert present(pager, storage, table) == b"\7" * 600
    assert engine.under_way[0].error is not None
    assert (page.state, page.dirty) == (State.RESIDENT, True)
    assert not pager.busy


def test_a_write_begun_is_waited_for_and_its_copy_kept() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine)
    storage = filled(600, 7)
    page = table.block(storage)
    pager.offload(page, "ssd")
    engine.under_way[0].begun = True
    assert present(pager, storage, table) == b"\7" * 600
    assert (page.state, page.dirty) == (State.RESIDENT, False)
    assert pager.accounted == page.size == 1024


def test_a_read_nobody_waits_for_any_more_is_cancelled(sent: Sent) -> None:
    deaths = sent.table.deaths()
    assert sent.pager.prefetch(sent.page)
    del sent.storage
    [(dead, _)] = deaths
    sent.pager.bury(dead)
    assert sent.engine.under_way[-1].error is not None
    assert sent.pager.accounted == sent.page.size, "its buffer is there until the read has ended"
    sent.pager.poll()
    assert sent.pager.accounted == 0
    assert not sent.pager.busy
    assert sent.pager.stores["ssd"].kept == {}  # type: ignore[attr-defined]


def test_a_failed_read_is_raised_at_every_use(sent: Sent) -> None:
    sent.pager.prefetch(sent.page)
    sent.engine.under_way[-1].fail()
    with pytest.raises(StorageError, match="the drive is gone"):
        sent.pager.poll()
    for _ in range(2):
        with pytest.raises(StorageError, match="the drive is gone"):
            sent.present()
    assert sent.page.state is State.FAILED
    assert sent.pager.accounted == 0


def test_a_failed_write_loses_nothing() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine, tiers=("ssd",))
    storage = filled(600, 7)
    page = table.block(storage)
    pager.offload(page, "ssd")
    engine.under_way[0].fail()
    with pytest.raises(StorageError, match="the drive is gone"):
        pager.poll()
    assert (page.state, page.dirty, page.extent) == (State.RESIDENT, True, None)
    assert present(pager, storage, table) == b"\7" * 600
    with pytest.raises(StorageError, match="the drive is gone"):
        pager.offload(page, "ssd")
    assert pager.stores["ssd"].kept == {}  # type: ignore[attr-defined]


def test_where_a_write_failed_the_other_tier_takes_over() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine)
    kept, lost = filled(600, 7), filled(700, 8)
    pager.offload(table.block(kept), "ssd")
    engine.under_way[-1].complete()
    pager.offload(table.block(lost), "ssd")
    engine.under_way[-1].fail()
    pager.poll()
    assert table.block(lost).state is State.RESIDENT
    assert pager.counters.failed_writes == ["the drive is gone"]
    pager.offload(table.block(lost), "ssd")
    assert table.block(lost).store is pager.stores["host"]
    engine.under_way[-1].complete()
    pager.poll()
    assert present(pager, lost, table) == b"\10" * 700
    assert present(pager, kept, table) == b"\7" * 600, "what was written before is still read"
    pager.written(table.block(kept))
    pager.offload(table.block(kept), "ssd")
    assert table.block(kept).store is pager.stores["host"], "its room in the ssd is not used again"


def test_room_is_made_in_the_other_tier_or_not_at_all() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine, budget=2048, room=4096)
    storages = [filled(1024, value) for value in (1, 2)]
    for storage in storages:
        table.block(storage)
    pager.where = (1, 0)
    pager.offload(table.block(storages[0]), "ssd")
    engine.under_way[-1].fail()
    pager.make_room(1024, [])
    assert table.block(storages[0]).store is pager.stores["host"]
    with pytest.raises(StorageError, match="the drive is gone"):
        pager.make_room(2048, [])


def test_a_full_host_tier_leaves_it_to_the_ssd() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine, room=4000)
    storages = [filled(600, value) for value in (1, 2)]
    for storage in storages:
        pager.offload(table.block(storage), "host")
    assert [table.block(s).store.tier for s in storages] == ["host", "ssd"]  # type: ignore[union-attr]


def test_a_full_ssd_is_an_error_and_nothing_has_moved() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine, room=400)
    storage = filled(600, 1)
    page = table.block(storage)
    with pytest.raises(StorageError, match="ssd is full; tensor 0, step 0, op 0"):
        pager.offload(page, "ssd")
    assert (page.state, page.extent, page.store) == (State.RESIDENT, None, None)
    assert content(storage) == b"\1" * 600


def test_room_is_made_of_what_was_used_longest_ago() -> None:
    size = SMALLEST_EVICTION
    engine = ManualEngine()
    pager, table = make_pager(engine, budget=4 * size)
    storages = [filled(size, value) for value in range(4)]
    pages = [table.block(storage) for storage in storages]
    for use, page in enumerate([pages[2], pages[0], pages[3], pages[1]]):
        page.last_use = use
    pager.make_room(2 * size, keep=[pages[0]])
    assert [page.state for page in pages] == [
        State.RESIDENT, State.RESIDENT, State.ABSENT, State.ABSENT,
    ]  # fmt: skip
    assert pager.counters.unplanned_evictions == 2
    assert pager.accounted == 2 * size


def test_small_pages_are_evicted_only_if_that_is_enough() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine, budget=4096)
    storages = [filled(512, value) for value in range(8)]
    pages = [table.block(storage) for storage in storages]
    pager.make_room(5000, keep=[])
    assert all(page.state is State.RESIDENT for page in pages)
    pager.make_room(1024, keep=[])
    assert [page.state for page in pages].count(State.ABSENT) == 2


def test_memory_that_is_not_torchs_stays() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine)
    pager.where = (10**6, 0)
    foreign = torch.frombuffer(bytearray(600), dtype=torch.uint8)
    shared = torch.zeros(600).share_memory_()
    for tensor in (foreign, shared):
        assert not pager.can_move(table.block(tensor.untyped_storage()))
    assert not pager.can_move(table.block(torch.zeros(0).untyped_storage()))


def test_a_prefetch_over_the_budget_waits(sent: Sent) -> None:
    sent.pager.limit_bytes = sent.page.size - 1
    assert not sent.pager.prefetch(sent.page)
    assert sent.page.state is State.ABSENT
    sent.pager.limit_bytes = sent.page.size
    assert sent.pager.prefetch(sent.page)
    assert sent.pager.prefetch(sent.page), "it is on its way"


def test_bringing_everything_back_does_not_ask_for_the_budget(sent: Sent) -> None:
    sent.pager.limit_bytes = 0
    sent.pager.bring_back()
    assert content(sent.storage) == b"\7" * 3000
    assert sent.pager.accounted == sent.page.size


def test_stalls_are_counted_by_their_cause(sent: Sent) -> None:
    sent.present()
    assert sent.pager.counters.unplanned_fetches == 1
    assert sent.pager.counters.stall_ns["unplanned_fetch"] > 0
    assert sent.pager.counters.stall_ns["late_prefetch"] == 0
    sent.pager.offload(sent.page, "ssd")
    sent.page.due = True
    sent.present()
    assert sent.pager.counters.unplanned_fetches == 1
    assert sent.pager.counters.stall_ns["late_prefetch"] > 0
    assert not sent.page.due


def test_a_margin_is_kept_free() -> None:
    engine = ManualEngine()
    pager, table = make_pager(engine, budget=3 * SMALLEST_EVICTION)
    pager.limit_bytes -= SMALLEST_EVICTION
    storages = [filled(SMALLEST_EVICTION, value) for value in (1, 2)]
    pages = [table.block(storage) for storage in storages]
    pager.where = (1, 0)
    pager.make_room(1, ())
    assert [page.state for page in pages] == [State.ABSENT, State.RESIDENT]


def test_a_device_without_room_in_spite_of_the_budget_gets_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The allocator refuses until as many bytes as are needed were evicted, in two rounds."""
    engine = ManualEngine()
    pager, table = make_pager(engine)
    small, others = filled(SMALLEST_EVICTION, 1), [filled(SMALLEST_EVICTION, 2) for _ in range(4)]
    page, *more = [table.block(storage) for storage in (small, *others)]
    pager.where = (1, 0)
    pager.offload(page, "ssd")
    pager.make_room(1 << 40, [page, *more])
    assert page.state is State.ABSENT
    usual = pager.memory.buffer_for
    refused: list[int] = []

    def buffer_for(*arguments: Any) -> Any:
        if len(refused) < 2:
            refused.append(pager.accounted)
            raise torch.OutOfMemoryError
        return usual(*arguments)

    monkeypatch.setattr(pager.memory, "buffer_for", buffer_for)
    pager.make_present(page, [page])
    assert content(small) == b"\1" * SMALLEST_EVICTION
    assert refused == [4 * SMALLEST_EVICTION, 3 * SMALLEST_EVICTION]
    assert pager.counters.out_of_memory == 2
    assert sum(page.state is State.ABSENT for page in more) == 2


def test_a_full_tier_leaves_no_frames_behind() -> None:
    """An error that is kept holds the frames it came through, and in them an op's tensors."""
    engine = ManualEngine()
    pager, table = make_pager(engine, room=4000)
    storages = [filled(600, value) for value in (1, 2)]
    pager.offload(table.block(storages[0]), "host")

    def offload() -> weakref.ref[torch.Tensor]:
        tensor = torch.zeros(1)
        pager.offload(table.block(storages[1]), "host")
        return weakref.ref(tensor)

    gc.disable()
    try:
        assert offload()() is None
    finally:
        gc.enable()
    assert table.block(storages[1]).store is pager.stores["ssd"]


def test_what_is_on_its_way_back_makes_room_where_nothing_else_can(sent: Sent) -> None:
    pager = sent.pager
    pager.where = (1, 0)
    pager.limit_bytes = sent.page.size
    assert pager.prefetch(sent.page)
    assert sent.page.state is State.READING
    pager.make_room(1, ())
    assert sent.page.state is State.ABSENT
    assert pager.accounted == 0
    assert sent.present() == b"\7" * 3000


def test_what_an_op_needs_is_not_sent_away_again(sent: Sent) -> None:
    pager = sent.pager
    pager.where = (1, 0)
    pager.limit_bytes = sent.page.size
    assert pager.prefetch(sent.page)
    pager.make_room(1, [sent.page])
    assert sent.page.state is State.READING
