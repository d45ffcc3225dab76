"""How many bytes an op is about to create in a step that does not follow the plan."""

from __future__ import annotations

from typing import Any

import torch

from teraio.executor.page import Page
from teraio.executor.schedule import Schedule
from teraio.profiler.opstream import Op
from teraio.profiler.storages import size_of, strided_parts, tensors_in
from teraio.profiler.trace import rounded


class NewBytes:
    """Knows by signature what ops of the plan need and others created.

    Asks torch's shape functions about ops never seen; these do not know that `mse_loss`, say,
    returns one number in the memory of all the differences.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._seen: dict[int, int] = {}
        for known, needed in zip(schedule.signatures, schedule.needs, strict=False):
            self._seen[known] = max(needed, self._seen.get(known, 0))

    def expect(self, op: Op[Page]) -> int:
        """Return the bytes of new storages an op will make, as far as can be told before."""
        if op.operator.is_view:
            return 0
        seen = self._seen.get(op.signature)
        return _by_shape(op) if seen is None else seen

    def learn(self, op: Op[Page]) -> None:
        """Remember what an op made."""
        made = sum(page.size for page in op.blocks[op.first_new :])
        self._seen[op.signature] = max(made, self._seen.get(op.signature, 0))


def _by_shape(op: Op[Page]) -> int:
    """Run the op on meta tensors; where it has no shape function, assume its arguments' size.

    An operator that is not torch's own might do anything when it is run; it is not.
    """
    arguments = sum(page.size for page in op.blocks)
    if op.operator.writes_all:
        return arguments
    try:
        args, kwargs = _to_meta(op.args), _to_meta(op.kwargs)
        given = {id(t) for t in tensors_in([args, kwargs])}
        if "device" in kwargs or not given:
            kwargs["device"] = torch.device("meta")
        made = [t for t in tensors_in(op.func(*args, **kwargs)) if id(t) not in given]
        return sum(
            rounded(size_of(part.untyped_storage())) for t in made for part in strided_parts(t)
        )
    except Exception:  # shape functions raise whatever they like
        return arguments


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_to_meta(item) for item in value)
    if isinstance(value, dict):
        return {key: _to_meta(item) for key, item in value.items()}
    return value
