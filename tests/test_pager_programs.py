"""The pager under random programs: whatever happens, the bytes are right and the books balance."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import torch
from example_counts import examples
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from manual import ManualEngine, content, filled, make_pager

from teraio.executor.memory import address_of
from teraio.executor.page import FOREVER, Page
from teraio.executor.pager import SMALLEST_EVICTION
from teraio.executor.states import State
from teraio.profiler.errors import StorageError
from teraio.profiler.trace import rounded


class Held:
    """What the program has: a storage, and what must be in it."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.expected = content(storage)

    def refill(self, nbytes: int, value: int) -> None:
        self.expected = bytes([value]) * nbytes
        ctypes.memmove(address_of(self.storage), self.expected, nbytes)


SIZES = st.sampled_from([1, 511, 512, 700, 2048, SMALLEST_EVICTION, SMALLEST_EVICTION + 3])
VALUES = st.integers(0, 255)
BUDGET = 4 * SMALLEST_EVICTION


class Programs(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.engine = ManualEngine()
        self.pager, self.table = make_pager(self.engine, BUDGET, 12 * SMALLEST_EVICTION)
        self.deaths = self.table.deaths()
        self.alive: list[Held] = []
        self.op = 0

    def page(self, held: Held) -> Page:
        return self.table.block(held.storage)

    def attempt(self, action: Callable[[], Any]) -> bool:
        """Do something that may meet a failed transfer or a full store."""
        try:
            action()
        except StorageError:
            return False
        return True

    # What the program does

    @rule(target=held, nbytes=SIZES, value=VALUES)
    def allocate(self, nbytes: int, value: int) -> Held:
        self.attempt(lambda: self.pager.make_room(rounded(nbytes), []))
        held = Held(filled(nbytes, value))
        self.page(held)
        self.alive.append(held)
        return held

    @rule(used=st.lists(held, min_size=1, max_size=3), writes=st.booleans(), value=VALUES,
          needed=st.sampled_from([0, 512, SMALLEST_EVICTION, BUDGET]))  # fmt: skip
    def run_op(self, used: list[Held], writes: bool, value: int, needed: int) -> None:
        self.op += 1
        self.pager.where = (self.pager.where[0], self.op)
        pages = [self.page(held) for held in used]
        for page in pages:
            page.last_use = self.op
            if page.state is not State.RESIDENT:
                done = self.attempt(lambda page=page: self.pager.make_present(page, pages))
                assert done or page.state in (State.RESIDENT, State.FAILED, State.ABSENT)
                if not done:
                    return
        assert self.attempt(lambda: self.pager.make_room(needed, pages)) or not all(
            page.state is State.ABSENT for page in pages
        )
        for held, page in zip(used, pages, strict=True):
            assert page.state is State.RESIDENT
            assert content(held.storage) == held.expected
            if writes:
                self.pager.written(page)
                held.refill(len(held.expected), value)

    @rule(one=held, hold=st.sampled_from([0, 1, 2]), value=VALUES)
    def touch(self, one: Held, hold: int, value: int) -> None:
        page = self.page(one)
        if self.attempt(lambda: self.pager.make_present(page, [page])):
            self.pager.written(page)
            one.refill(len(one.expected), value)
            until = {0: -1, 1: self.pager.where[0], 2: FOREVER}[hold]
            page.pinned_until = max(page.pinned_until, until)

    @rule(one=held, nbytes=st.sampled_from([0, 512, 3000, SMALLEST_EVICTION]), value=VALUES,
          noticed=st.booleans())  # fmt: skip
    def resize(self, one: Held, nbytes: int, value: int, noticed: bool) -> None:
        page = self.page(one)
        if self.attempt(lambda: self.pager.make_present(page, [page])):
            self.pager.written(page)
            one.storage.resize_(nbytes)
            one.refill(nbytes, value)
            if noticed:
                self.pager.resized(page)

    @rule(target=held, one=consumes(held), lives_on=st.booleans())
    def die(self, one: Held, lives_on: bool) -> Any:
        if lives_on:
            return one
        self.alive.remove(one)
        del one.storage
        self.bury()
        return multiple()

    @rule()
    def end_step(self) -> None:
        self.pager.where = (self.pager.where[0] + 1, 0)

    @rule()
    def fork(self) -> None:
        self.attempt(self.pager.bring_back)

    # What the plan and the drives do

    @rule(one=held, tier=st.sampled_from(["ssd", "host"]))
    def offload(self, one: Held, tier: str) -> None:
        page = self.page(one)
        if self.pager.can_move(page):
            self.attempt(lambda: self.pager.offload(page, tier))

    @rule(one=held)
    def prefetch(self, one: Held) -> None:
        before = self.pager.accounted
        page = self.page(one)
        if self.pager.prefetch(page) and self.pager.accounted > before:
            assert self.pager.accounted <= BUDGET

    @rule()
    def poll(self) -> None:
        self.attempt(self.pager.poll)

    @rule(which=st.integers(0, 10), how=st.sampled_from(["begin", "complete", "complete", "fail"]))
    def drive(self, which: int, how: str) -> None:
        under_way = [t for t in self.engine.under_way if not t.done]
        if under_way:
            transfer = under_way[which % len(under_way)]
            if how == "begin":
                transfer.begun = True
            else:
                {"complete": transfer.complete, "fail": transfer.fail}[how]()

    # What is always true

    def bury(self) -> None:
        while self.deaths:
            self.pager.bury(self.deaths.popleft()[0])

    def every_page(self) -> list[Page]:
        self.bury()
        return [*self.table, *self.pager._orphans]

    @invariant()
    def the_books_balance(self) -> None:
        pages = self.every_page()
        assert self.pager.accounted == sum(page.size for page in pages if page.holds_memory) >= 0

    @invariant()
    def the_bytes_are_right(self) -> None:
        for held in self.alive:
            page = self.page(held)
            if page.state in (State.RESIDENT, State.WRITING):
                assert content(held.storage) == held.expected
            elif page.state in (State.ABSENT, State.READING):
                assert page.store is not None
                assert page.extent is not None
                assert page.store.kept[page.extent.id] == held.expected  # type: ignore[attr-defined]
            else:
                assert page.error is not None

    @invariant()
    def a_clean_copy_is_the_same(self) -> None:
        for held in self.alive:
            page = self.page(held)
            if not page.dirty and len(held.expected) == page.nbytes:
                assert page.store.kept[page.extent.id] == held.expected  # type: ignore[union-attr]

    @invariant()
    def no_extent_is_lost(self) -> None:
        for store in self.pager.stores.values():
            used = [p.extent.id for p in self.every_page() if p.extent and p.store is store]
            assert sorted(used) == sorted(store.kept)  # type: ignore[attr-defined]

    @invariant()
    def states_and_transfers_agree(self) -> None:
        pages = list(self.table)
        assert {p.id for p in self.pager._writing} == {
            p.id for p in pages if p.state is State.WRITING
        }
        assert {p.id for p in self.pager._reading} == {
            p.id for p in pages if p.state is State.READING
        }
        for page in pages:
            under_way = page.state in (State.WRITING, State.READING)
            assert (page.transfer is not None) == under_way
            assert (page.held is not None) == (page.state is State.WRITING)
            assert (page.buffer is not None) == (page.state is State.READING)

    def complete_all(self) -> None:
        while self.engine.under_way:
            self.engine.under_way.pop().complete()

    def teardown(self) -> None:
        self.complete_all()
        while not self.attempt(lambda: self.pager.close(restore=True)):
            pass  # each failure is met once
        for held in self.alive:
            if self.page(held).state is not State.FAILED:
                assert content(held.storage) == held.expected
        while self.alive:
            del self.alive.pop().storage
        if self.every_page():
            gc.collect()  # a failed transfer and the frames it went through are a cycle
        assert self.every_page() == []
        assert self.pager.accounted == 0
        assert all(not store.kept for store in self.pager.stores.values())  # type: ignore[attr-defined]


Programs.TestCase.settings = examples(60, stateful_step_count=50, print_blob=True)
TestPrograms = Programs.TestCase
