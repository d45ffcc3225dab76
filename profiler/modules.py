"""Which module is running, and what its parameters, buffers and gradients are called."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

TensorLabel = tuple[torch.Tensor, str, str]
"""A tensor, its kind in the trace's words, and its qualified name."""


class ModuleWatch:
    """Follows module calls through torch's global forward hooks.

    `roots` are the outermost modules called so far, in order of their first call.
    """

    def __init__(self) -> None:
        self.roots: list[weakref.ref[torch.nn.Module]] = []
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._stack: list[weakref.ref[torch.nn.Module]] = []

    @property
    def current(self) -> str:
        """The qualified name of the innermost module that is running, "" if none is."""
        if not self._stack:
            return ""
        module = self._stack[-1]()
        return "" if module is None else self._names.get(module, "")

    @property
    def running(self) -> bool:
        """Whether any module is running."""
        return bool(self._stack)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow module calls until the exit."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def labels(self) -> Iterator[TensorLabel]:
        """Yield the parameters, buffers and gradients of every root, each with its name."""
        for ref in self.roots:
            root = ref()
            if root is None:
                continue
            for name, parameter in root.named_parameters():
                yield parameter, "parameter", name
                if parameter.grad is not None:
                    yield parameter.grad, "gradient", f"{name}.grad"
            for name, buffer in root.named_buffers():
                yield buffer, "buffer", name

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        if not self._stack and module not in self._names:
            self._name_tree(module)
        self._stack.append(weakref.ref(module))

    def _leave(self, module: torch.nn.Module, _args: Any, _result: Any) -> None:
        while self._stack:
            if self._stack.pop()() is module:
                break

    def _name_tree(self, root: torch.nn.Module) -> None:
        self.roots.append(weakref.ref(root))
        for name, module in root.named_modules():
            self._names[module] = name


def optimizer_labels(
    optimizer: torch.optim.Optimizer, names: dict[int, str]
) -> Iterator[TensorLabel]:
    """Yield an optimizer's states and gradients; `names` has its parameters' names by `id`."""
    for number, parameter in enumerate(p for g in optimizer.param_groups for p in g["params"]):
        name = names.get(id(parameter), f"param{number}")
        if names.get(id(parameter)) is None:
            yield parameter, "parameter", name
        if parameter.grad is not None:
            yield parameter.grad, "gradient", f"{name}.grad"
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield value, "optimizer_state", f"{name}.{key}"
