"""The op stream: every operator a program dispatches, numbered within its step.

One `TorchDispatchMode` sees the ops; listeners (the recorder, the executor) are told of each
before and after it runs, with the storages it touches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from teraio.profiler.interruptions import Interruptions
from teraio.profiler.operators import Operator, describe, signature
from teraio.profiler.partition import partition
from teraio.profiler.storages import (
    Block,
    StorageTable,
    storages_of,
    strided_parts,
    tensors_in,
    tracked_device,
)
from teraio.profiler.touch import Hold

B = TypeVar("B", bound=Block)

READ, WRITE = 1, 2


class Op(Generic[B]):
    """One dispatched operator call.

    `blocks` are the storages it touches, arguments first, each once; `access[i]` says how
    (READ | WRITE). Results that are new storages are appended once it has run, from position
    `first_new` on. `entered_ns` is the host time at which the op stream got hold of it, `left_ns`
    that at which its call returned.
    """

    __slots__ = ("access", "args", "blocks", "entered_ns", "first_new", "func", "index", "kwargs",
                 "left_ns", "operator", "signature", "step")  # fmt: skip

    def __init__(self, operator: Operator, step: int, index: int) -> None:
        self.operator = operator
        self.step = step
        self.index = index
        self.signature = 0
        self.blocks: list[B] = []
        self.access: list[int] = []
        self.first_new = 0
        self.func: Any = None
        self.args: Any = ()
        self.kwargs: dict[str, Any] = {}
        self.entered_ns = perf_counter_ns()
        self.left_ns = 0


class Listener(Protocol[B]):
    """Told of every op, in order. Blocks handed over live at least until the call returns."""

    def before_op(self, op: Op[B]) -> None:
        """Called when an op is about to run: its arguments must be there when this returns."""

    def after_op(self, op: Op[B]) -> None:
        """Called once an op has run; `op.blocks` then holds its results too."""

    def touch(self, block: B, hold: Hold) -> None:
        """Called before memory is reached without an op, by `tolist`, say."""

    def end_step(self, step: int) -> None:
        """Called after the last op of a step."""


class OpStream(TorchDispatchMode, Generic[B]):  # type: ignore[no-untyped-call]
    """Numbers ops, finds their storages and tells the listeners.

    Entered like any dispatch mode. Ops inside a listener are not seen.
    """

    supports_higher_order_operators = True

    def __init__(self, table: StorageTable[B], listeners: Sequence[Listener[B]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.listeners = tuple(listeners)
        self.device = tracked_device()
        self._is_here = attrgetter(f"is_{self.device.type}")  # far cheaper than `device.type`
        self.step = 0
        self.index = 0
        self._operators: dict[Any, Operator] = {}
        self._signatures: dict[tuple[Any, ...], int] = {}
        self._process = os.getpid()
        self.lock = threading.RLock()
        self.interruptions = Interruptions(self)
        self._touching = False
        self.make_room: Callable[[Op[B]], bool] = lambda _: False
        """Called when an op that may be called again found no memory on the device."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile as it would without this mode."""
        return True

    @property
    def active(self) -> bool:
        """False once nobody listens, and in a forked child: its listeners are its parent's."""
        return bool(self.listeners) and os.getpid() == self._process

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run one operator under the eyes of the listeners."""
        kwargs = kwargs or {}
        if types and any(_dispatches_itself(cls) for cls in types):
            if any(issubclass(cls, torch._subclasses.FakeTensor) for cls in types):
                return func(*args, **kwargs)
            return NotImplemented  # it unwraps itself; its inner ops come here again
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = describe(func)
        if operator.name.startswith("profiler."):
            return func(*args, **kwargs)
        if operator.is_list:
            return self._run_cut(operator, func, args, kwargs)
        return self._run(operator, func, args, kwargs)

    def end_step(self) -> None:
        """Close the running step and number ops from 0 again."""
        if not self.active:
            return
        with self.lock, self.interruptions:
            for listener in self.listeners:
                listener.end_step(self.step)
            self.step += 1
            self.index = 0
            self.table.position = (self.step, -1)
        self.interruptions.collect()

    def touch(self, storage: torch.UntypedStorage, hold: Hold) -> None:
        """Tell the listeners that memory is about to be reached without an op."""
        if not self.active:
            return
        with self.lock, self.interruptions:
            here = storage.device.type == self.device.type
            if not here or self._touching:
                return
            # An address that is known before any op has met the storage must hold too.
            block = self.table.block(storage) if hold else self.table.known(storage)
            if block is None:
                return
            self._touching = True
            try:
                for listener in self.listeners:
                    listener.touch(block, hold)
            finally:
                self._touching = False

    def touch_tensor(self, tensor: torch.Tensor, hold: Hold) -> None:
        """Tell the listeners that a tensor's memory is about to be reached without an op."""
        if not self.active or self._touching:
            return
        with self.lock, self.interruptions:
            self._touching = True
            try:
                storages = storages_of(tensor)
            finally:
                self._touching = False
            for storage in storages:
                self.touch(storage, hold)

    def _run(self, operator: Operator, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not self.active:
            return func(*args, **kwargs)
        with self.lock:
            if self._touching:  # an op of a listener's own
                return func(*args, **kwargs)
            with self.interruptions:
                return self._run_numbered(operator, func, args, kwargs)

    def _run_numbered(
        self, operator: Operator, func: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        op: Op[B] = Op(operator, self.step, self.index)
        op.func, op.args, op.kwargs = func, args, kwargs
        if not self._find_arguments(op, args, kwargs) and not self._creates_here(args, kwargs):
            return func(*args, **kwargs)
        self.index += 1
        if self.index % 1024 == 0:
            self.interruptions.collect_if_overdue()
        self.table.position = (op.step, op.index)
        for listener in self.listeners:
            listener.before_op(op)
        out = None
        try:
            out = self._call(op)
        finally:  # an op that raises has ended too
            op.left_ns = perf_counter_ns()
            self._find_results(op, out)
            for listener in self.listeners:
                listener.after_op(op)
        return out

    def _call(self, op: Op[B]) -> Any:
        """Call the operator, again if it found no memory and `make_room` says that may help."""
        while True:
            try:
                return op.func(*op.args, **op.kwargs)
            except torch.OutOfMemoryError:
                if not (op.operator.repeatable and self.make_room(op)):
                    raise

    def _find_arguments(self, op: Op[B], args: Any, kwargs: dict[str, Any]) -> bool:
        """List the op's argument storages; return whether any tensor is on the tracked device."""
        operator, is_here = op.operator, self._is_here
        here = False
        parts: list[Any] = [operator.name]
        seen: dict[int, int] = {}
        named = [*enumerate(args), *kwargs.items()] if kwargs else enumerate(args)
        for position, value in named:
            how = READ | WRITE if operator.writes_all or position in operator.written else READ
            if operator.ignores_first and position == 0:
                how = 0
            if isinstance(value, torch.Tensor):
                tensors: Iterable[torch.Tensor] = (value,)
            elif isinstance(value, (list, tuple, dict)):
                tensors = tensors_in(value)
            elif isinstance(value, torch.UntypedStorage):
                if value.device.type == self.device.type:
                    here = True
                    self._add_block(op, seen, self.table.block(value), how)
                continue
            else:
                continue
            for tensor in tensors:
                parts.append(_shape_of(tensor))
                parts.append(tensor.dtype)
                if is_here(tensor):
                    here = True
                    if how:
                        self._add(op, seen, tensor, how)
        if len(parts) == 1:
            parts += [str(args[position]) for position in operator.sizes if position < len(args)]
            parts.append(str(kwargs.get("dtype")))
        key = tuple(parts)
        found = self._signatures.get(key)
        if found is None:
            found = self._signatures[key] = signature(operator.name, key[1:])
        op.signature = found
        op.first_new = len(op.blocks)
        return here

    def _add(self, op: Op[B], seen: dict[int, int], tensor: torch.Tensor, how: int) -> None:
        if tensor.layout is not torch.strided:
            for part in strided_parts(tensor):
                self._add(op, seen, part, how)
            return
        self._add_block(op, seen, self.table.block(tensor.untyped_storage()), how)

    def _add_block(self, op: Op[B], seen: dict[int, int], block: B, how: int) -> None:
        at = seen.get(block.id)
        if at is None:
            seen[block.id] = len(op.blocks)
            op.blocks.append(block)
            op.access.append(how)
        else:
            op.access[at] |= how

    def _find_results(self, op: Op[B], out: Any) -> None:
        seen = {block.id: i for i, block in enumerate(op.blocks)}
        for tensor in (out,) if isinstance(out, torch.Tensor) else tensors_in(out):
            is_fake = isinstance(tensor, torch._subclasses.FakeTensor)
            if self._is_here(tensor) and not is_fake:
                self._add(op, seen, tensor, 0)
        for position in range(op.first_new, len(op.blocks)):
            op.access[position] = WRITE

    def _creates_here(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether an op without storages of the tracked device makes one there."""
        device = kwargs.get("device")
        if device is None:
            return self.device.type == "cpu" and not any(True for _ in tensors_in(args))
        return torch.device(device).type == self.device.type

    def _run_cut(self, operator: Operator, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a list operator over groups of its entries: the same arithmetic, entry by entry."""
        first = args[0] if args and isinstance(args[0], (list, tuple)) else []
        sizes = [t.nbytes for t in first if isinstance(t, torch.Tensor)]
        groups = partition(sizes) if len(sizes) == len(first) else []
        lists = [v for v in (*args, *kwargs.values()) if isinstance(v, (list, tuple))]
        uneven = any(len(value) != len(first) for value in lists)  # the operator will complain
        if len(groups) < 2 or uneven or _has_scalar_tensor(args):
            return self._run(operator, func, args, kwargs)
        results: list[Any] = []
        for group in groups:
            out = self._run(operator, func, *_cut(args, kwargs, group))
            results += out if isinstance(out, (list, tuple)) else ()
        return results or None


def _shape_of(tensor: torch.Tensor) -> Any:
    try:
        return tensor.shape
    except RuntimeError:  # a nested tensor has as many shapes as parts
        return ("nested", tensor.numel())


def _dispatches_itself(cls: type) -> bool:
    return cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]


def _has_scalar_tensor(args: Any) -> bool:
    """Whether a list operator takes its scalars as one tensor, which is not cut."""
    return any(isinstance(value, torch.Tensor) and value.dim() == 1 for value in args[1:])


def _cut(args: Any, kwargs: dict[str, Any], group: slice) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def part(value: Any) -> Any:
        return value[group] if isinstance(value, (list, tuple)) else value

    return tuple(part(v) for v in args), {k: part(v) for k, v in kwargs.items()}
