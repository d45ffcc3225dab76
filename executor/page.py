"""A storage of the running program with all that the executor knows of it, in one object."""

from __future__ import annotations

from teraio.executor.states import State, require_move
from teraio.executor.stores.base import Extent, Store
from teraio.executor.transfer import Transfer
from teraio.profiler.errors import StorageError
from teraio.profiler.storages import Block, UntypedStorage
from teraio.profiler.trace import rounded

NEVER = -1
FOREVER = 1 << 62
SOME_TIME = (FOREVER, 0)


class Page(Block):
    """One storage, its state, its copy in a tier and the transfer under way.

    `size` is what it takes on the device. `dirty` is true while no tier holds its current
    bytes. Until step `pinned_until` is over it may not move, because the program knows its
    address. `held` keeps the memory alive while a write reads from it, `buffer` the memory that
    a read fills. `gone_by` is the (step, op) before which a write is planned to be over. A copy
    in host memory is given up once it is read back, unless `keeps_host_copy`: host memory has a
    budget too.
    """

    # Most pages never move: what they have in common is kept here, once.
    state = State.RESIDENT
    dirty = True
    due = False
    gone_by = SOME_TIME
    keeps_host_copy = False
    name = ""
    last_use = NEVER
    pinned_until = NEVER
    store: Store | None = None
    extent: Extent | None = None
    transfer: Transfer | None = None
    held: UntypedStorage | None = None
    buffer: UntypedStorage | None = None
    error: StorageError | None = None

    def __init__(self, storage: UntypedStorage, block_id: int) -> None:
        super().__init__(storage, block_id)
        self.size = rounded(self.nbytes)

    def move_to(self, state: State) -> None:
        """Change state; raises IllegalMoveError for a move that is not in `states.MOVES`."""
        require_move(self.state, state, self.id)
        self.state = state

    @property
    def holds_memory(self) -> bool:
        """Whether its bytes count against the budget."""
        return self.state not in (State.ABSENT, State.FAILED)
