"""Ways to reach a tensor's memory that no dispatched op shows, each announced first.

`tolist`, `numpy`, DLPack, `data_ptr`, pickling, `torch.save` and the methods of storages read
or write memory without an operator. While installed, each tells the op stream before it does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Protocol

import torch


class Touchable(Protocol):
    """What is told of a touch; see `OpStream.touch`."""

    def touch(self, storage: torch.UntypedStorage, *, keeps_address: bool) -> None:
        """Called before the memory is reached."""


_TENSOR_READS: Final[tuple[str, ...]] = ("tolist", "__deepcopy__")
_TENSOR_ADDRESSES: Final[tuple[str, ...]] = (
    "numpy", "__array__", "data_ptr", "__dlpack__", "share_memory_", "pin_memory",
)  # fmt: skip
_STORAGE_READS: Final[tuple[str, ...]] = (
    "tolist", "clone", "cpu", "to", "byteswap", "__getitem__", "__setitem__",
    "_write_file", "copy_", "__deepcopy__",
)  # fmt: skip
_STORAGE_ADDRESSES: Final[tuple[str, ...]] = (
    "data_ptr", "resize_", "share_memory_", "_share_fd_cpu_", "_share_filename_cpu_",
    "pin_memory", "_share_cuda_",
)  # fmt: skip


@contextmanager
def touch_points(stream: Touchable) -> Iterator[None]:
    """Announce every touch to `stream` until the exit."""
    with ExitStack() as stack:
        for owner, name, keeps in _points():
            stack.enter_context(_announced(owner, name, stream, keeps_address=keeps))
        yield


def _points() -> Iterator[tuple[Any, str, bool]]:
    """Every touch point: its class, its name, and whether it gives the address away."""
    for owner, reads, addresses in (
        (torch.Tensor, _TENSOR_READS, _TENSOR_ADDRESSES),
        (torch.UntypedStorage, _STORAGE_READS, _STORAGE_ADDRESSES),
        (torch._C.PyTorchFileWriter, ("write_record",), ()),
    ):
        yield from ((owner, name, False) for name in reads)
        yield from ((owner, name, True) for name in addresses)


@contextmanager
def _announced(owner: Any, name: str, stream: Touchable, *, keeps_address: bool) -> Iterator[None]:
    """Wrap one method so that the storages among its arguments are announced."""
    original: Callable[..., Any] | None = getattr(owner, name, None)
    if original is None:
        yield
        return
    own = name in vars(owner)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if isinstance(value, torch.UntypedStorage):
                stream.touch(value, keeps_address=keeps_address)
            elif isinstance(value, torch.Tensor) and _has_storage(value):
                stream.touch(value.untyped_storage(), keeps_address=keeps_address)
        return original(*args, **kwargs)

    setattr(owner, name, method)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not isinstance(tensor, torch._subclasses.FakeTensor)
