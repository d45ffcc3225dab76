"""The op stream: every operator a program dispatches, numbered within its step.

One `TorchDispatchMode` sees the ops; listeners (the recorder, the executor) are told of each
before and after it runs, with the storages it touches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from time import perf_counter_ns
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from teraio.profiler import optimizers
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

_FAKE = torch._subclasses.FakeTensor


class _Forks:
    """How often the process has been forked on the way here: cheaper to ask than its id."""

    def __init__(self) -> None:
        self.generation = 0
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.generation += 1


_forks = _Forks()


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

    def add(self, block: B, how: int) -> None:
        """Note that the op touches a storage."""
        if block in self.blocks:
            self.access[self.blocks.index(block)] |= how
        else:
            self.blocks.append(block)
            self.access.append(how)


class Before(NamedTuple):
    """What an op was in the step before: its operator, the bytes of its arguments' storages."""

    func: Any
    nbytes: int
    signature: int


class Listener(Protocol[B]):
    """Told of every op, in order. Blocks handed over live at least until the call returns.

    At the positions in `quiet` it does without an op that only makes a view, if that is the op
    that was there in the step before.
    """

    quiet: frozenset[int]

    def before_op(self, op: Op[B]) -> None:
        """Called when an op is about to run: its arguments must be there when this returns."""

    def after_op(self, op: Op[B]) -> None:
        """Called once an op has run; `op.blocks` then holds its results too."""

    def touch(self, block: B, hold: Hold) -> None:
        """Called before memory is reached without an op, by `tolist`, say."""

    def end_step(self, step: int, ops: int) -> None:
        """Called after the last op of a step, which had so many."""


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
        self.paused = False
        """Whether ops run without being numbered or told of."""
        self.remembers = False
        """Whether ops are compared with those of the step before, to save time."""
        self._before: list[Before] = []
        self._generation = _forks.generation
        self.sizeless: Container[int] = ()
        """Keys of storages of which no view can be made as they are."""
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
        return bool(self.listeners) and self._generation == _forks.generation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run one operator under the eyes of the listeners."""
        kwargs = kwargs or {}
        if types and any(_dispatches_itself(cls) for cls in types):
            if any(issubclass(cls, _FAKE) for cls in types):
                return func(*args, **kwargs)
            return NotImplemented  # it unwraps itself; its inner ops come here again
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = describe(func)
        if operator.is_marker:
            return func(*args, **kwargs)
        if operator.is_list and not optimizers.group.is_stepping:
            return self._run_cut(operator, func, args, kwargs)
        return self._run(operator, func, args, kwargs)

    def end_step(self) -> None:
        """Close the running step and number ops from 0 again."""
        if not self.active:
            return
        with self.lock, self.interruptions:
            for listener in self.listeners:
                listener.end_step(self.step, self.index)
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
        if not self.listeners or self.paused or self._generation != _forks.generation:
            return self._run_unseen(func, args, kwargs)
        with self.lock:
            if self._touching:  # an op of a listener's own
                return func(*args, **kwargs)
            interruptions = self.interruptions
            interruptions.depth += 1
            try:
                if operator.is_view and self._is_quiet(func, args):
                    self.index += 1
                    return func(*args, **kwargs)
                return self._run_numbered(operator, func, args, kwargs)
            finally:
                interruptions.depth -= 1
                if interruptions.waiting:
                    interruptions.let_in()

    def _run_unseen(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an op that nobody is told of; signals wait for the end of this one too."""
        try:
            return func(*args, **kwargs)
        finally:
            if self.interruptions.waiting:
                self.interruptions.let_in()

    def _is_quiet(self, func: Any, args: Any) -> bool:
        """Whether nobody needs to be told of an op that only makes a view of its first argument."""
        index, tensor = self.index, args[0] if args else None
        if index >= len(self._before):
            return False
        for listener in self.listeners:
            if index not in listener.quiet:
                return False
        if self._before[index].func is not func or not isinstance(tensor, torch.Tensor):
            return False
        if not self._is_here(tensor) or tensor.layout is not torch.strided:
            return False
        return not self.sizeless or tensor.untyped_storage()._cdata not in self.sizeless

    def _run_numbered(
        self, operator: Operator, func: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        op: Op[B] = Op(operator, self.step, self.index)
        op.func, op.args, op.kwargs = func, args, kwargs
        if not self._find_arguments(op, args, kwargs) and not self._creates_here(args, kwargs):
            return func(*args, **kwargs)
        op.signature = self._signature(op)
        self.index += 1
        if self.index % 1024 == 0:
            self.interruptions.collect_if_overdue()
        self.table.position = (op.step, op.index)
        if operator.goes_on:
            self._hold_arguments(op)
        for listener in self.listeners:
            listener.before_op(op)
        out = None
        try:
            out = self._call(op)
        finally:  # an op that raises has ended too
            op.left_ns = perf_counter_ns()
            if out is not None:
                self._find_results(op, out)
            for listener in self.listeners:
                listener.after_op(op)
        return out

    def _hold_arguments(self, op: Op[B]) -> None:
        """Have an op's arguments stay where they are from now on."""
        for block in op.blocks:
            for listener in self.listeners:
                listener.touch(block, Hold.LIFE)

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
        operator, is_here, here = op.operator, self._is_here, False
        written, table = operator.written, self.table
        for position, value in [*enumerate(args), *kwargs.items()] if kwargs else enumerate(args):
            if isinstance(value, torch.Tensor):
                tensors: Iterable[torch.Tensor] = (value,)
            elif isinstance(value, (list, tuple, dict)):
                tensors = tensors_in(value)
            elif isinstance(value, torch.UntypedStorage):
                if value.device.type == self.device.type:
                    here = True
                    op.add(table.block(value), READ | WRITE)
                continue
            else:
                continue
            how = READ | WRITE if position in written or operator.writes_all else READ
            if position == 0 and operator.ignores_first:
                how = 0
            for tensor in tensors:
                if is_here(tensor):
                    here = True
                    if how and tensor.layout is torch.strided:
                        op.add(table.block(tensor.untyped_storage()), how)
                    elif how:
                        self._add_parts(op, tensor, how)
        op.first_new = len(op.blocks)
        return here

    def _signature(self, op: Op[B]) -> int:
        """Return the op's signature, or that of an op much like it in the step before.

        Only if `remembers`: it does the same to as many bytes then.
        """
        index, nbytes = op.index, 0
        for block in op.blocks:
            nbytes += block.nbytes
        before = self._before[index] if index < len(self._before) else None
        if before is not None and nbytes and before.nbytes == nbytes and before.func is op.func:
            return before.signature
        found = self.exact_signature(op)
        if before is not None:
            self._before[index] = Before(op.func, nbytes, found)
        elif self.remembers:
            self._before.append(Before(op.func, nbytes, found))
        return found

    def exact_signature(self, op: Op[B]) -> int:
        """Return the signature that an op has whatever was before, and remember it."""
        key = _key(op.operator, op.args, op.kwargs)
        found = self._signatures.get(key)
        if found is None:
            found = self._signatures[key] = signature(op.operator.name, key[1:])
        if op.index < len(self._before):
            self._before[op.index] = self._before[op.index]._replace(signature=found)
        return found

    def _add_parts(self, op: Op[B], tensor: torch.Tensor, how: int) -> None:
        """Add the storages of a tensor that has several, or none.

        What only makes a view of a dense tensor copies parts of such a one.
        """
        if op.operator.is_view:
            op.operator = replace(op.operator, is_view=False)
        for part in strided_parts(tensor):
            if part.layout is torch.strided:
                op.add(self.table.block(part.untyped_storage()), how)
            else:
                self._add_parts(op, part, how)

    def _find_results(self, op: Op[B], out: Any) -> None:
        for tensor in (out,) if isinstance(out, torch.Tensor) else tensors_in(out):
            if not self._is_here(tensor) or isinstance(tensor, _FAKE):
                continue
            if tensor.layout is torch.strided:
                op.add(self.table.block(tensor.untyped_storage()), 0)
            else:
                self._add_parts(op, tensor, 0)
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


def _key(operator: Operator, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return an operator's name with the shapes and dtypes of its tensors, or what it makes."""
    parts: list[Any] = [operator.name]
    for value in (*args, *kwargs.values()):
        for tensor in tensors_in(value):
            parts.append(_shape_of(tensor))
            parts.append(tensor.dtype)
    if len(parts) == 1:
        parts += [str(args[position]) for position in operator.sizes if position < len(args)]
        parts.append(str(kwargs.get("dtype")))
    return tuple(parts)


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
