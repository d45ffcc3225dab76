"""Ways to reach a tensor's memory that no dispatched op shows, each announced first.

`tolist`, `numpy`, DLPack, `data_ptr`, pickling, `torch.save` and the methods of storages read
or write memory without an operator. While installed, each tells the op stream before it does.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from typing import Any, Final, Protocol

import torch

from teraio.profiler.storages import note_loaded, size_of


class Hold(IntEnum):
    """How long the program may use the memory after a touch, without another touch."""

    SIZE = -1
    """It asks for the size only."""
    NOT = 0
    STEP = 1
    """It has the address: until the end of the step."""
    LIFE = 2
    """It shares the memory: as long as the storage lives."""


class Touchable(Protocol):
    """What is told of a touch; see `OpStream`."""

    def touch(self, storage: torch.UntypedStorage, hold: Hold) -> None:
        """Called before the memory of a storage is reached."""

    def touch_tensor(self, tensor: torch.Tensor, hold: Hold) -> None:
        """Called before the memory of a tensor is reached."""


_TENSOR_POINTS: Final = {
    # `__repr__` runs its ops with all dispatch modes off.
    Hold.NOT: ("tolist", "__deepcopy__", "__repr__", "apply_", "map_", "map2_"),
    Hold.STEP: ("data_ptr", "const_data_ptr"),
    Hold.LIFE: ("numpy", "__array__", "__dlpack__", "share_memory_"),
}
_STORAGE_POINTS: Final = {
    Hold.SIZE: ("nbytes", "size", "__len__"),
    Hold.NOT: (
        "tolist", "clone", "cpu", "to", "byteswap", "pin_memory", "copy_", "resize_",
        "__getitem__", "__setitem__", "__deepcopy__", "_write_file", "_set_from_file", "fill_",
    ),
    Hold.STEP: ("data_ptr",),
    Hold.LIFE: ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_"),
}  # fmt: skip
_WRITER_POINTS: Final = {Hold.NOT: ("write_record",)}
_DLPACK_POINTS: Final = {Hold.LIFE: ("to_dlpack",)}


_TYPED_DATA_PTR: Final = torch.TypedStorage._data_ptr.__code__

_announcing = threading.local()
"""`owner`: the storage whose `tolist` is running, which takes its bytes one by one."""


@contextmanager
def touch_points(stream: Touchable) -> Iterator[None]:
    """Announce every touch to `stream` until the exit."""
    with ExitStack() as stack:
        for owner, points in (
            (torch.Tensor, _TENSOR_POINTS),
            (torch.UntypedStorage, _STORAGE_POINTS),
            (torch._C.PyTorchFileWriter, _WRITER_POINTS),
            (torch.utils.dlpack, _DLPACK_POINTS),
        ):
            for hold, names in points.items():
                for name in names:
                    stack.enter_context(_announced(owner, name, stream, hold))
        stack.enter_context(_identities_for_save())
        stack.enter_context(_loaded_noted())
        stack.enter_context(_buckets_held(stream))
        yield


@contextmanager
def _announced(owner: Any, name: str, stream: Touchable, hold: Hold) -> Iterator[None]:
    """Wrap one function so that the storages among its arguments are announced."""
    original: Callable[..., Any] | None = getattr(owner, name, None)
    if original is None:
        yield
        return
    own = name in vars(owner)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        if args and args[0] is getattr(_announcing, "owner", None):
            return original(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.UntypedStorage):
                stream.touch(value, hold)
            elif isinstance(value, torch.Tensor):
                stream.touch_tensor(value, hold)
        if name != "tolist":
            return original(*args, **kwargs)
        _announcing.owner = args[0]
        try:
            return original(*args, **kwargs)
        finally:
            _announcing.owner = None

    setattr(owner, name, method)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@contextmanager
def _identities_for_save() -> Iterator[None]:
    """Give `torch.save` and `torch.load` a storage's identity where they ask for its address.

    They only tell storages apart by it, and empty ones. Addresses would need all of them on the
    device at once.
    """
    owner: Any = torch.UntypedStorage
    announced = owner.data_ptr

    @functools.wraps(announced)
    def data_ptr(storage: torch.UntypedStorage) -> int:
        frame = sys._getframe(1)
        if frame.f_code is _TYPED_DATA_PTR:
            frame = frame.f_back or frame
        of_file = frame.f_globals.get("__name__") == "torch.serialization" and size_of(storage)
        return int(storage._cdata if of_file else announced(storage))

    owner.data_ptr = data_ptr
    try:
        yield
    finally:
        owner.data_ptr = announced


@contextmanager
def _loaded_noted() -> Iterator[None]:
    """Note what `torch.load` reads: memory of its own that looks like a library's.

    Otherwise all that a resumed run has loaded would have to stay where it is. What it maps from
    a file does not come this way.
    """
    owner: Any = torch._C.PyTorchFileReader
    original: Callable[..., torch.Tensor] = owner.get_storage_from_record

    @functools.wraps(original)
    def get_storage_from_record(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = original(*args, **kwargs)
        note_loaded(tensor.untyped_storage())
        return tensor

    owner.get_storage_from_record = get_storage_from_record
    try:
        yield
    finally:
        owner.get_storage_from_record = original


@contextmanager
def _buckets_held(stream: Touchable) -> Iterator[None]:
    """Have a bucket of gradients stay that a communication hook of DDP gets hold of.

    What the hook does once the communication is over runs in a thread that Python did not start.
    """
    owner: Any = getattr(getattr(torch._C, "_distributed_c10d", None), "GradBucket", None)
    if owner is None:
        yield
        return
    original: Callable[..., torch.Tensor] = owner.buffer

    @functools.wraps(original)
    def buffer(bucket: Any) -> torch.Tensor:
        tensor = original(bucket)
        stream.touch_tensor(tensor, Hold.LIFE)
        return tensor

    owner.buffer = buffer
    try:
        yield
    finally:
        owner.buffer = original
