"""Taking the bytes out of a storage that the program still holds, and putting them back.

The tensors, views and autograd references of the program stay valid throughout; version
counters do not move.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, Protocol

import torch

from teraio.profiler.storages import can_swap, size_of

# The methods of the C base class: those of UntypedStorage announce touches while a run is on.
_BASE: Any = torch._C.StorageBase

_PROT_NONE: Final = 0
_MAP_PRIVATE_ANONYMOUS_NORESERVE: Final = 0x02 | 0x20 | 0x4000
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


class Memory(Protocol):
    """How bytes leave and re-enter storages on one device."""

    name: str
    views_while_absent: bool
    """Whether a view may be made of a storage that has no bytes."""

    def release(self, storage: torch.UntypedStorage, reason: str) -> None:
        """Free a storage's bytes; a stray read raises an error that gives `reason`, if it can."""

    def buffer_for(
        self, storage: torch.UntypedStorage | None, nbytes: int, device: torch.device
    ) -> torch.UntypedStorage:
        """Return fresh memory into which to read the bytes of a released storage."""

    def attach(self, storage: torch.UntypedStorage, buffer: torch.UntypedStorage) -> None:
        """Make a released storage own the bytes of its buffer."""


def address_of(storage: torch.UntypedStorage) -> int:
    """Return the address of a storage's bytes."""
    return int(_BASE.data_ptr(storage))


def new_buffer(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    """Return fresh memory from the device's own allocator.

    No operator is called: the program may be inside a function transform, or want fresh tensors
    filled.
    """
    construct: Any = torch.UntypedStorage
    storage: torch.UntypedStorage = construct(nbytes, device=device)
    return storage


class SwapMemory:
    """Swaps bytes with a stand-in of the same size that no process may read or write.

    The stand-in is one region of address space without access rights, shared by all absent
    storages: it takes no memory, views can be made of it, and a stray read or write ends the
    process at once instead of giving wrong numbers. Where torch can poison a storage, a named
    Python error comes first.
    """

    views_while_absent = True

    def __init__(self) -> None:
        self._address, self._nbytes = 0, 0
        self._poison = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
        self._heal = getattr(torch._C, "_clear_storage_data_ptr_access_error_msg", None)
        if self._heal is None:
            self._poison = None
        self.name = "swap, guarded" if self._poison is None else "swap, guarded and poisoned"

    def release(self, storage: torch.UntypedStorage, reason: str) -> None:
        """Swap the bytes out and free them."""
        nbytes = size_of(storage)
        stand_in = _storage_at(self._region(nbytes), nbytes)
        _swap(storage, stand_in)
        if self._poison is not None:
            self._poison(storage._cdata, reason)

    def buffer_for(
        self, storage: torch.UntypedStorage | None, nbytes: int, device: torch.device
    ) -> torch.UntypedStorage:
        """Return a storage of its own: until it is full, the stand-in stays."""
        return new_buffer(nbytes, device)

    def attach(self, storage: torch.UntypedStorage, buffer: torch.UntypedStorage) -> None:
        """Swap the buffer's bytes in."""
        if self._heal is not None:
            self._heal(storage._cdata)
        _swap(storage, buffer)

    def _region(self, nbytes: int) -> int:
        """Return address space for `nbytes`; an outgrown one stays, storages point at it."""
        if nbytes > self._nbytes:
            self._nbytes = max(nbytes, 2 * self._nbytes)
            self._address = _reserve(self._nbytes)
        return self._address


class ResizeMemory:
    """For a torch that cannot swap: storages are resized to nothing and back.

    A stray read of an absent storage is undefined here; `teraio doctor` says so.
    """

    name = "resize, unguarded"
    views_while_absent = False

    def release(self, storage: torch.UntypedStorage, reason: str) -> None:
        """Resize to 0 bytes."""
        _BASE.resize_(storage, 0)

    def buffer_for(
        self, storage: torch.UntypedStorage | None, nbytes: int, device: torch.device
    ) -> torch.UntypedStorage:
        """Resize back and return the storage itself; nobody may use it until it is full."""
        if storage is None:
            return new_buffer(nbytes, device)
        _BASE.resize_(storage, nbytes)
        return storage

    def attach(self, storage: torch.UntypedStorage, buffer: torch.UntypedStorage) -> None:
        """Do nothing: the buffer is the storage."""


def memory_for(device: torch.device) -> Memory:
    """Return the best way this torch has for a device."""
    return SwapMemory() if can_swap(device) else ResizeMemory()


def _swap(one: Any, other: torch.UntypedStorage) -> None:
    one._swap_data_ptr_(other)


def _reserve(nbytes: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, nbytes, _PROT_NONE, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    if address is None or address == _MAP_FAILED:
        msg = f"cannot reserve {nbytes} bytes of address space (errno {ctypes.get_errno()})"
        raise MemoryError(msg)
    return int(address)


def _storage_at(address: int, nbytes: int) -> torch.UntypedStorage:
    construct: Any = torch._C._construct_storage_from_data_pointer
    storage: torch.UntypedStorage = construct(address, torch.device("cpu"), nbytes)
    return storage
