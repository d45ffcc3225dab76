"""Keeps the bytes of the program's storages within the budget.

All state changes happen on the program's own thread; the engine's workers only move bytes.
A storage being written stays where it is until the write is over, so reading it is always
right; one being read fills a fresh buffer, which becomes the storage's memory when it is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from teraio.executor.counters import Counters, add
from teraio.executor.device import Device
from teraio.executor.memory import address_of
from teraio.executor.page import FOREVER, SOME_TIME, Page
from teraio.executor.states import State
from teraio.executor.stores.base import Extent, Store
from teraio.executor.transfer import Mover, TransferLabel
from teraio.planner.plan import HOST
from teraio.profiler.errors import StorageError, StuckError
from teraio.profiler.storages import UntypedStorage, owned_by_torch, size_of
from teraio.profiler.trace import rounded

SMALLEST_EVICTION = 64 << 10
"""Bytes: anything smaller is evicted to make room only if there is nothing else."""

_ABANDONED: list[Page] = []
"""Pages of which a stuck request may still move bytes: their memory stays with the process."""


class Pager:
    """Moves pages between the device and the stores, and counts what is on the device.

    It makes room as if the budget were `margin_bytes` smaller: that is for what it cannot count.
    A tier in which a write has failed is not written to again, as long as there is another.
    """

    def __init__(
        self,
        *,
        device: Device,
        stores: Mapping[str, Store],
        movers: Mapping[str, Mover],
        budget_bytes: int,
        counters: Counters,
        margin_bytes: int = 0,
    ) -> None:
        self.device, self.stores, self.movers = device, stores, movers
        self.memory = device.memory
        self.budget_bytes = budget_bytes
        self.limit_bytes = budget_bytes - margin_bytes
        self.counters = counters
        self.accounted = 0
        self.where: tuple[int, int] = (0, 0)
        self.fallback_tier = next(iter(stores), "")
        self.sizeless: set[int] = set()
        """Keys of the storages of which no view can be made while they are away."""
        self.every_page: Callable[[], Iterable[Page]] = tuple
        self._broken: dict[str, StorageError] = {}
        self._writing: list[Page] = []
        self._reading: list[Page] = []
        self._orphans: list[Page] = []

    def new_page(self, storage: UntypedStorage, block_id: int) -> Page:
        """Make the page of a storage seen for the first time."""
        page = Page(storage, block_id)
        if not owned_by_torch(storage):
            page.pinned_until = FOREVER
        self.accounted += page.size
        return page

    def bury(self, page: Page) -> None:
        """Forget a page whose storage is gone; a buffer being read into stays until it is full."""
        if page.state is State.READING and page.transfer is not None:
            self._reading.remove(page)
            page.transfer.cancel()
            self._orphans.append(page)
        else:
            self.sizeless.discard(page.key)
            self.accounted -= page.size * page.holds_memory
            self._give_back(page)

    def _bury_orphan(self, page: Page) -> None:
        if page.transfer is not None:
            try:
                page.transfer.wait()
            except StuckError:
                raise
            except StorageError:  # nobody is left to use these bytes
                pass
        self._orphans.remove(page)
        page.transfer = page.buffer = None
        self.accounted -= page.size
        self._give_back(page)

    def resized(self, page: Page) -> None:
        """Take note of the size of a storage, which the program may have changed."""
        storage = page.storage
        if storage is None or page.state is not State.RESIDENT:
            return
        nbytes = size_of(storage)
        if nbytes != page.nbytes:
            self.accounted += rounded(nbytes) - page.size
            page.nbytes, page.size = nbytes, rounded(nbytes)
            self._give_back(page)

    def written(self, page: Page) -> None:
        """Take note that the program writes a page: its copy in a tier is out of date."""
        page.dirty = True

    # Leaving the device

    def can_move(self, page: Page) -> bool:
        """Whether a page may leave the device now."""
        movable = page.state is State.RESIDENT and page.nbytes > 0
        return movable and page.pinned_until < self.where[0]

    def has_size(self, page: Page) -> bool:
        """Whether views may be made of a page's storage as it is."""
        return page.holds_memory or self.memory.views_while_absent

    def offload(self, page: Page, tier: str, gone_by: tuple[int, int] = SOME_TIME) -> None:
        """Begin to move a resident page to a tier, or drop it if the tier has its bytes."""
        store = self.stores[tier]
        self.resized(page)
        if not page.dirty and page.store is store:
            page.move_to(State.ABSENT)
            self._release(page)
            add(self.counters.dropped, tier, page.nbytes)
            return
        storage = page.storage
        if storage is None or not page.nbytes:
            return
        store, extent = self._room(page, store)
        page.move_to(State.WRITING)
        page.held, page.gone_by = storage, gone_by
        page.transfer = self.movers[store.tier].write(
            store,
            extent,
            address_of(storage),
            page.nbytes,
            self._label(page),
            after=self.device.now(),
        )
        self._writing.append(page)

    def poll(self) -> None:
        """Finish the oldest transfers, as far as they are over: cheap enough for every op."""
        while self._writing and _is_over(self._writing[0]):
            self._finish_write(self._writing[0], keep=False)
        while self._reading and _is_over(self._reading[0]):
            self._finish_read(self._reading[0])
        while self._orphans and _is_over(self._orphans[0]):
            self._bury_orphan(self._orphans[0])

    def poll_all(self) -> None:
        """Finish the transfers that are over, in whatever order they were begun."""
        for page in [page for page in self._writing if _is_over(page)]:
            self._finish_write(page, keep=False)
        for page in [page for page in self._reading if _is_over(page)]:
            self._finish_read(page)
        for page in [page for page in self._orphans if _is_over(page)]:
            self._bury_orphan(page)

    @property
    def busy(self) -> bool:
        """Whether any transfer is under way."""
        return bool(self._writing or self._reading or self._orphans)

    def make_room(self, needed: int, keep: Sequence[Page]) -> None:
        """Free memory until `needed` more bytes fit in the limit, as far as that is possible.

        Waits for transfers that free memory first, then evicts what was used longest ago. Pages
        in `keep` stay.
        """
        if self.accounted + needed <= self.limit_bytes:
            return
        self.poll_all()
        with self.counters.stalled("memory"):
            while self.accounted + needed > self.limit_bytes:
                if self._orphans:
                    self._bury_orphan(self._orphans[0])
                elif self._writing:
                    self._finish_write(self._writing[0], keep=False)
                elif self._evict_one(keep, self.accounted + needed - self.limit_bytes):
                    continue
                elif not self._land_one(keep):
                    break

    def _land_one(self, keep: Sequence[Page]) -> bool:
        """Wait for a page on its way back that is not in `keep`: it can be evicted then."""
        page = next((page for page in self._reading if page not in keep), None)
        if page is None:
            return False
        self._finish_read(page)
        return self.can_move(page)

    def relieve(self, nbytes: int, keep: Sequence[Page]) -> bool:
        """Evict about `nbytes` bytes whatever the accounts say; return whether any were.

        For when the allocator has no room although the budget has: its free memory lies apart.
        """
        before = self.accounted
        with self.counters.stalled("memory"):
            while self.accounted + nbytes > before:
                if self._writing:
                    self._finish_write(self._writing[0], keep=False)
                elif not self._evict_one(keep, self.accounted + nbytes - before):
                    break
            self.device.give_back_cached()
        self.counters.out_of_memory += 1
        return self.accounted < before

    def _evict_one(self, keep: Sequence[Page], lacking: int) -> bool:
        kept = {page.id for page in keep}
        movable = [p for p in self.every_page() if p.id not in kept and self.can_move(p)]
        candidates = [page for page in movable if page.size >= SMALLEST_EVICTION]
        if not candidates and sum(page.size for page in movable) >= lacking:
            candidates = movable
        if not candidates or not self.fallback_tier:
            return False
        victim = min(candidates, key=lambda page: (page.last_use, page.id))
        tier = victim.store.tier if victim.store and not victim.dirty else self.fallback_tier
        self.offload(victim, tier)
        self.counters.unplanned_evictions += 1
        return True

    # Coming back

    def prefetch(self, page: Page) -> bool:
        """Begin to bring an absent page back if it fits the budget; return whether it is coming."""
        if page.state is not State.ABSENT:
            return True
        if self.accounted + page.size > self.limit_bytes:
            self.poll_all()
            if self.device.runs_ahead:
                self._await_planned_writes(page.size)
        if self.accounted + page.size > self.limit_bytes:
            return False
        try:
            self._start_read(page, urgent=False)
        except torch.OutOfMemoryError:
            return False
        return True

    def may_fit(self, page: Page) -> bool:
        """Whether it is worth another try to prefetch a page that found no room."""
        fits = self.accounted + page.size <= self.limit_bytes
        return fits or (self.device.runs_ahead and any(map(self._is_due, self._writing[:1])))

    def _is_due(self, page: Page) -> bool:
        step, op = self.where
        return page.gone_by <= (step, op + 1)

    def _await_planned_writes(self, needed: int) -> None:
        """Wait for writes that are planned to be over now, until `needed` bytes fit.

        The host cannot see whether they will be when the device has come this far.
        """
        with self.counters.stalled("memory"):
            for page in [page for page in self._writing if self._is_due(page)]:
                if self.accounted + needed <= self.limit_bytes:
                    return
                self._finish_write(page, keep=False)

    def make_present(self, page: Page, keep: Sequence[Page]) -> None:
        """Have a page's bytes on the device, settled, when this returns.

        Raises the StorageError of a failed transfer.
        """
        if page.state is State.WRITING:
            self._recall(page)
        elif page.state is State.READING:
            with self.counters.stalled("late_prefetch"):
                self._finish_read(page)
        elif page.state is State.ABSENT:
            self._fetch(page, keep)
        if page.error is not None:
            raise _again(page.error)

    def _fetch(self, page: Page, keep: Sequence[Page]) -> None:
        self.counters.unplanned_fetches += not page.due
        self.make_room(page.size, keep)
        with self.counters.stalled("late_prefetch" if page.due else "unplanned_fetch"):
            while page.state is State.ABSENT:
                try:
                    self._start_read(page, urgent=True)
                except torch.OutOfMemoryError:
                    if not self.relieve(page.size, keep):
                        raise
            self._finish_read(page)

    def _start_read(self, page: Page, *, urgent: bool) -> None:
        store, extent = page.store, page.extent
        if store is None or extent is None:
            msg = f"storage {page.id} is absent and no tier holds it"
            raise StorageError(msg, hint="this is a fault in teraio; please report it")
        torch_device = self.device.torch_device
        page.buffer = self.memory.buffer_for(page.storage, page.nbytes, torch_device)
        self.sizeless.discard(page.key)
        page.move_to(State.READING)
        self.accounted += page.size
        page.transfer = self.movers[store.tier].read(
            store,
            extent,
            address_of(page.buffer),
            page.nbytes,
            self._label(page),
            urgent=urgent,
            after=self.device.now(),
        )
        self._reading.append(page)

    def _finish_read(self, page: Page) -> None:
        transfer, buffer, storage = page.transfer, page.buffer, page.storage
        if transfer is None or buffer is None:
            return
        transfer.promote()
        try:
            transfer.wait()
        except StuckError as error:
            self.counters.errors.append(str(error))
            raise
        except StorageError as error:
            self.counters.errors.append(str(error))
            page.move_to(State.FAILED)
            page.error = _again(error)
            self.accounted -= page.size
            if buffer is storage:
                self._empty(page, storage, str(error))
            raise
        finally:
            if transfer.done:
                self._reading.remove(page)
                page.transfer = page.buffer = None
        page.move_to(State.RESIDENT)
        page.due = False
        if storage is not None:
            self.memory.attach(storage, buffer)
        self.counters.came_back(page.store.tier if page.store else "", transfer)
        if page.store is not None and page.store.tier == HOST and not page.keeps_host_copy:
            self._give_back(page)

    # Writes under way

    def _recall(self, page: Page) -> None:
        """Keep a page that was about to leave."""
        if page.transfer is not None and page.transfer.cancel():
            self._writing.remove(page)
            page.move_to(State.RESIDENT)
            page.transfer = page.held = None
            return
        with self.counters.stalled("unplanned_fetch"):
            self._finish_write(page, keep=True)

    def _finish_write(self, page: Page, *, keep: bool) -> None:
        transfer = page.transfer
        if transfer is None:
            return
        try:
            transfer.wait()
        except StuckError as error:
            self.counters.errors.append(str(error))
            raise
        except StorageError as error:
            page.move_to(State.RESIDENT)  # nothing is lost: the bytes never left
            if not self._can_do_without(page, error):
                self.counters.errors.append(str(error))
                raise
            return
        finally:
            if transfer.done:
                self._writing.remove(page)
                page.transfer = None
                if page.state is State.RESIDENT or keep:
                    page.held = None
        page.dirty = False
        self.counters.went_out(page.store.tier if page.store else "", transfer)
        page.move_to(State.RESIDENT if keep else State.ABSENT)
        if not keep:
            self._release(page)

    def _can_do_without(self, page: Page, error: StorageError) -> bool:
        """Write no more to the tier in which a write failed; return whether there is another."""
        tier = page.store.tier if page.store else ""
        self._give_back(page)
        self._broken.setdefault(tier, _again(error))
        if self._broken.keys() == self.stores.keys():
            return False
        self.counters.failed_writes.append(str(error))
        return True

    def _release(self, page: Page) -> None:
        storage = page.storage if page.held is None else page.held
        page.held = None
        self.accounted -= page.size
        if storage is not None:
            step, op = self.where
            reason = f"teraio moved tensor {page.id} {page.name} away at step {step}, op {op}"
            self._empty(page, storage, reason)

    def _empty(self, page: Page, storage: UntypedStorage, reason: str) -> None:
        self.memory.release(storage, reason)
        if not self.memory.views_while_absent:
            self.sizeless.add(page.key)

    def _room(self, page: Page, store: Store) -> tuple[Store, Extent]:
        """Return where to write a page: in `store`, or in another tier if that is full."""
        broken = self._broken.get(store.tier)
        if page.extent is not None and page.store is store and not broken:
            return store, page.extent
        self._give_back(page)
        full = _again(broken) if broken else None
        candidates = [store, *(other for other in self.stores.values() if other is not store)]
        for candidate in (c for c in candidates if c.tier not in self._broken):
            try:
                extent = candidate.allocate(page.nbytes)
            except StorageError as error:
                full = full or StorageError(f"{error}; {self._label(page)}", hint=error.hint)
            else:
                page.store, page.extent = candidate, extent
                return candidate, extent
        full = full or StorageError("there is no tier to move tensors to")
        self.counters.errors.append(str(full))
        raise full

    def _give_back(self, page: Page) -> None:
        if page.extent is not None and page.store is not None:
            page.store.free(page.extent)
        page.extent, page.store, page.dirty = None, None, True

    def _label(self, page: Page) -> TransferLabel:
        return TransferLabel(page.id, page.name, *self.where)

    def close(self, *, restore: bool) -> None:
        """Wait for what is under way; with `restore`, bring every absent page back."""
        try:
            self._settle(restore=restore)
        except StuckError:
            _ABANDONED.extend((*self._writing, *self._reading, *self._orphans))
            raise
        if restore:
            self.bring_back()

    def _settle(self, *, restore: bool) -> None:
        for page in list(self._writing):
            self._finish_write(page, keep=restore)
        for page in list(self._reading):
            self._finish_read(page)
        for page in list(self._orphans):
            self._bury_orphan(page)

    def bring_back(self) -> None:
        """Have every page's bytes on the device, whatever the budget."""
        for page in self.every_page():
            if page.state is State.ABSENT:
                self._start_read(page, urgent=True)
            if page.state is State.READING:
                self._finish_read(page)


def _is_over(page: Page) -> bool:
    return page.transfer is not None and page.transfer.done


def _again(error: StorageError) -> StorageError:
    """Return an equal error that has no traceback: its frames would keep the storage alive."""
    return type(error)(str(error), hint=error.hint)
