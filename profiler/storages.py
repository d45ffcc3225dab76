"""Storages: the unit in which memory is recorded and moved.

A tensor, its views and its `.data` are one storage. While a `StorageImpl` lives, torch hands out
one Python object for it, so a weak reference to that object ends exactly when the memory does.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import torch

UntypedStorage = torch.UntypedStorage


class Block:
    """One storage of the running program, under an id that is never reused."""

    __slots__ = ("__weakref__", "id", "key", "nbytes", "ref")

    def __init__(self, storage: UntypedStorage, block_id: int) -> None:
        self.id = block_id
        self.nbytes = size_of(storage)
        self.key: int = storage._cdata
        self.ref: weakref.ref[UntypedStorage] | None = None

    @property
    def storage(self) -> UntypedStorage | None:
        """The storage, or None once it is gone."""
        return None if self.ref is None else self.ref()


B = TypeVar("B", bound=Block)


class StorageTable(Generic[B]):
    """The storages seen so far that still live.

    Keyed by the address of the `StorageImpl`, which is unique while it lives; a finaliser takes
    the key back before the address can be used again. Deaths can come from any thread and in
    the middle of anything, so they are only queued here, once for each reader of `deaths`.
    """

    def __init__(self, factory: Callable[[UntypedStorage, int], B]) -> None:
        self._factory = factory
        self._blocks: dict[int, B] = {}
        self._deaths: list[deque[tuple[B, tuple[int, int]]]] = []
        self._next_id = 0
        self.position: tuple[int, int] = (0, 0)
        """The step and op that are running, with which a death is stamped."""

    def block(self, storage: UntypedStorage) -> B:
        """Return the block of a storage, making one when it is new."""
        found = self._blocks.get(storage._cdata)
        return self._adopt(storage) if found is None else found

    def known(self, storage: UntypedStorage) -> B | None:
        """Return the block of a storage, or None if no op has touched it yet."""
        return self._blocks.get(storage._cdata)

    def deaths(self) -> deque[tuple[B, tuple[int, int]]]:
        """Return a queue of the blocks that die from now on, with the (step, op) they died in.

        For one reader, who takes them from the left.
        """
        queue: deque[tuple[B, tuple[int, int]]] = deque()
        self._deaths.append(queue)
        return queue

    def __iter__(self) -> Iterator[B]:
        return iter(list(self._blocks.values()))

    def _adopt(self, storage: UntypedStorage) -> B:
        block = self._factory(storage, self._next_id)
        self._next_id += 1

        def died(_: object, table: StorageTable[B] = self, block: B = block) -> None:
            table._blocks.pop(block.key, None)
            for queue in table._deaths:
                queue.append((block, table.position))

        block.ref = weakref.ref(storage, died)
        self._blocks[block.key] = block
        return block


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in an operator's arguments or results, lists and dicts walked."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def size_of(storage: UntypedStorage) -> int:
    """Return a storage's size in bytes without announcing that it is asked for."""
    base: Any = torch._C.StorageBase
    return int(base.nbytes(storage))


_RANDOM_STATE_BYTES: Final = torch.get_rng_state().nbytes

_loaded: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()


def note_loaded(storage: UntypedStorage) -> None:
    """Note that a storage is torch's own although torch says that it cannot be resized."""
    _loaded.add(storage)


def owned_by_torch(storage: UntypedStorage) -> bool:
    """Whether there is memory, and it is torch's own: no other process or library shares it."""
    if not storage.resizable():
        is_owned = storage in _loaded and can_swap(storage.device)
    else:
        is_owned = storage.device.type != "cpu" or not storage.is_shared()  # CUDA's always is
    return is_owned and not _may_be_random_state(storage) and _has_memory(storage)


def _may_be_random_state(storage: UntypedStorage) -> bool:
    """Whether it has the size of a generator's state, which torch reads without an operator."""
    return storage.device.type == "cpu" and size_of(storage) == _RANDOM_STATE_BYTES


def _has_memory(storage: UntypedStorage) -> bool:
    """False for the zeros of forward mode, which torch only pretends to hold."""
    base: Any = torch._C.StorageBase
    try:
        base.data_ptr(storage)
    except RuntimeError:
        return False
    return True


def can_swap(device: torch.device) -> bool:
    """Whether a storage on the device can be given other memory and keep its size.

    Where it cannot, no view can be made of one whose bytes are away.
    """
    return device.type == "cpu" and hasattr(torch.UntypedStorage, "_swap_data_ptr_")


def tracked_device() -> torch.device:
    """Return the device whose memory is the budget: the accelerator, or the CPU without one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if accelerator is None else torch.device(accelerator.type)


def storages_of(tensor: torch.Tensor) -> list[UntypedStorage]:
    """Return the storages under a tensor, be it sparse or wrapped by a function transform.

    Empty for a tensor that has none.
    """
    with torch._C.DisableTorchFunction():
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        try:
            return [part.untyped_storage() for part in strided_parts(tensor)]
        except (RuntimeError, NotImplementedError):
            return []


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors a tensor is made of: itself, or a sparse one's parts."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
