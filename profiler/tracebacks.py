"""Tracebacks as they would be under plain `python`."""

from __future__ import annotations

import types
from typing import Final

_OURS: Final = ("teraio.", "teraio_cli.")
_BEFORE_OURS: Final = frozenset({"torch._compile", "torch._dynamo.eval_frame"})
"""Through these modules torch calls the `__torch_dispatch__` of a mode."""
_AFTER_OURS: Final = frozenset({"torch._ops"})
"""Through this one a mode calls the operator."""


def clean(error: BaseException) -> None:
    """Take the frames of teraio, and of torch around them, out of an exception's tracebacks.

    Its causes, its contexts and the members of a group are cleaned too.
    """
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _kept(one.__traceback__)
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        pending += [e for e in (one.__cause__, one.__context__, *members) if e is not None]


def _kept(traceback: types.TracebackType | None) -> types.TracebackType | None:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for frame, extra in reversed(list(zip(frames, _extra(frames), strict=True))):
        if not extra:
            kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _extra(frames: list[types.TracebackType]) -> list[bool]:
    """Say for each frame whether it would not be there under plain `python`."""
    modules = [str(frame.tb_frame.f_globals.get("__name__")) for frame in frames]
    extra = [module.startswith(_OURS) for module in modules]
    for at in range(1, len(frames)):
        extra[at] |= extra[at - 1] and modules[at] in _AFTER_OURS
    for at in reversed(range(len(frames) - 1)):
        extra[at] |= extra[at + 1] and modules[at] in _BEFORE_OURS
    return extra
