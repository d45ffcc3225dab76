"""Optimizer steps: taken over groups of parameters, and the end of a training step.

A `foreach` or fused optimizer touches all its states in one op, which would make all of them
resident at once. Its step is therefore taken several times, each time over a group of the
parameters: the update of a parameter reads its own state only, so the arithmetic is the same
bit for bit.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.optim import Optimizer

from teraio.profiler.partition import partition

_COUPLED: Final = frozenset({"LBFGS"})
"""Optimizers of torch whose update of one parameter reads the others."""

_UNWATCHED: Final = "_teraio_unwatched"
"""Attribute of a watched `step`: the function it was before."""

ABANDONED: Final = 32
"""Steps of other optimizers after which the one that closed the training step is given up: more
than any usual ratio of critic to generator steps."""

StepFunction = Callable[..., Any]


class _Group:
    """Whether an optimizer is stepping over one group of several, whose lists are short already."""

    is_stepping = False


group = _Group()


class OptimizerWatch:
    """Knows whether an optimizer is stepping, and calls back before and after each step.

    `on_step_end` is called after the outermost `step()` of the optimizer that closes the
    training step: the first one that ever stepped and still does, so that a program with two
    optimizers has one step per round of both.
    """

    def __init__(
        self,
        before: Callable[[Optimizer], None],
        on_step_end: Callable[[Optimizer], None],
        *,
        in_groups: bool = True,
    ) -> None:
        self._in_groups = in_groups
        self._before = before
        self._on_step_end = on_step_end
        self._depth = 0
        self._anchor: weakref.ref[Optimizer] | None = None
        self._others = 0

    @property
    def stepping(self) -> bool:
        """Whether an optimizer's `step()` is running."""
        return self._depth > 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch the optimizers of every class, made before or after, until the exit."""
        original = Optimizer.profile_hook_step

        def watched_hook(func: StepFunction) -> StepFunction:
            step = self._watched(original(_in_groups(func) if self._in_groups else func))
            setattr(step, _UNWATCHED, func)
            return step

        for cls, step in list(_hooked_classes()):
            _hook(cls, watched_hook(step.__wrapped__))
        _replace_hook(watched_hook)
        try:
            yield
        finally:
            _replace_hook(original)
            for cls, step in list(_hooked_classes()):
                _hook(cls, original(getattr(step, _UNWATCHED, step.__wrapped__)))

    def _watched(self, step: StepFunction) -> StepFunction:
        @functools.wraps(step)
        def watched(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                self._before(optimizer)
            self._depth += 1
            try:
                result = step(optimizer, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0 and self._closes_step(optimizer):
                self._on_step_end(optimizer)
            return result

        return watched

    def _closes_step(self, optimizer: Optimizer) -> bool:
        anchor = None if self._anchor is None else self._anchor()
        self._others = 0 if optimizer is anchor else self._others + 1
        if anchor is None or self._others >= ABANDONED:
            self._anchor = weakref.ref(optimizer)
            return True
        return anchor is optimizer


def _in_groups(func: StepFunction) -> StepFunction:
    if not func.__module__.startswith("torch.optim.") or _name_of_class(func) in _COUPLED:
        return func

    @functools.wraps(func)
    def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        cuts = [_cut_group(group) for group in optimizer.param_groups]
        rounds = [round_ for cut in cuts for round_ in cut]
        if len(rounds) <= 1 or torch.compiler.is_compiling():
            return func(optimizer) if closure is None else func(optimizer, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        whole = optimizer.param_groups
        group.is_stepping = True
        try:
            for one in rounds:
                optimizer.param_groups = [one]
                func(optimizer)
        finally:
            group.is_stepping = False
            optimizer.param_groups = whole
        return loss

    return step


def _cut_group(group: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut one parameter group into several with the same options."""
    params = group["params"]
    sizes = [p.nbytes for p in params]
    return [{**group, "params": params[part]} for part in partition(sizes)]


def _hooked_classes() -> Iterator[tuple[type[Optimizer], Any]]:
    pending = [Optimizer]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        step = cls.__dict__.get("step")
        if getattr(step, "hooked", False):
            yield cls, step


def _hook(cls: type[Optimizer], step: Any) -> None:
    step.hooked = True  # torch's own mark: it hooks no class twice
    cls.step = step  # type: ignore[method-assign]


def _replace_hook(hook: StepFunction) -> None:
    Optimizer.profile_hook_step = staticmethod(hook)  # type: ignore[method-assign]


def _name_of_class(func: StepFunction) -> str:
    return func.__qualname__.partition(".")[0]
