"""What an operator does to its arguments, read once from its schema."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final

import torch

_UNDECLARED_VIEWS: Final = frozenset({"aten::_unsafe_view", "aten::lift", "aten::lift_fresh"})
"""Return their argument's storage although the schema does not say so."""

_UNDECLARED_WRITES: Final = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
}
"""Update these arguments in place although the schema does not say so."""

_METADATA: Final = frozenset(
    f"aten::{name}"
    for name in (
        "is_same_size", "size", "sym_size", "stride", "sym_stride", "numel", "sym_numel",
        "storage_offset", "sym_storage_offset", "dim", "is_contiguous",
        "_has_same_storage_numel",
    )
)  # fmt: skip
"""Look at shapes only."""

_RANGES: Final = frozenset({"aten::arange", "aten::range"})
"""Make as many entries as their numbers say; other operators' numbers are mere values."""

_DRAWN_FROM: Final = frozenset({"low", "high"})
"""Integers that are mere values too."""

_RESIZERS: Final = ("resize", "_resize", "set_")

_COLLECTIVES: Final = ("c10d::", "_c10d_functional::")

_TRUSTED: Final = ("aten::", "prims::")
"""Namespaces whose schemas say truthfully what is written; others are taken to write it all."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's name and what it does with its arguments.

    `is_view`: it only makes a view or reads metadata; it is numbered but accesses nothing.
    `is_list`: one of the `_foreach_*` family, which treats its lists entry by entry, so that
    they may be cut. `ignores_first`: its first argument only lends its shape, as in
    `zeros_like`. `writes_all`: nothing says what it writes. `sizes` are the positions of the
    arguments that say how large its results are. `resizes`: what it writes may change in size,
    as with `out=`. `is_marker`: one of torch's profiler's. `repeatable`: called again after a
    failure it does the same, as it writes nothing and draws no random numbers.
    """

    name: str
    is_view: bool = False
    is_list: bool = False
    ignores_first: bool = False
    writes_all: bool = False
    written: frozenset[int | str] = frozenset()
    sizes: tuple[int, ...] = ()
    resizes: bool = False
    is_marker: bool = False
    repeatable: bool = False
    goes_on: bool = False


def describe(func: Any) -> Operator:
    """Read an operator's schema; an operator without one (higher order) may write anything."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Operator(str(func), writes_all=True, resizes=True)
    written = _written(schema)
    short = schema.name.rpartition("::")[2]
    trusted = schema.name.startswith(_TRUSTED)
    return Operator(
        name=str(func),
        is_view=not written and (schema.name in _METADATA or _is_view(func, schema)),
        is_list=schema.name.startswith("aten::_foreach_"),
        ignores_first=short.endswith("_like") or short.startswith("new_"),
        writes_all=not trusted,
        written=written,
        sizes=tuple(i for i, a in enumerate(schema.arguments) if _is_size(schema.name, a)),
        resizes=not trusted or short.startswith(_RESIZERS) or _has_out(schema),
        is_marker=schema.name.startswith("profiler::"),
        repeatable=trusted and not written and torch.Tag.nondeterministic_seeded not in func.tags,
        goes_on=schema.name.startswith(_COLLECTIVES),
    )


def _written(schema: torch.FunctionSchema) -> frozenset[int | str]:
    """The positions and the names of the arguments an operator writes."""
    undeclared = _UNDECLARED_WRITES.get(schema.name, ())
    written: set[int | str] = set()
    for position, argument in enumerate(schema.arguments):
        declared = argument.alias_info is not None and argument.alias_info.is_write
        if declared or argument.name in undeclared:
            written |= {position, argument.name}
    return frozenset(written)


def _has_out(schema: torch.FunctionSchema) -> bool:
    return any(a.kwarg_only and a.alias_info is not None for a in schema.arguments)


def _is_size(operator: str, argument: Any) -> bool:
    kind = str(argument.type)
    is_integer = kind in ("int", "List[int]") and argument.name not in _DRAWN_FROM
    return is_integer or (operator in _RANGES and kind == "number")


def _is_view(func: Any, schema: torch.FunctionSchema) -> bool:
    if schema.name in _UNDECLARED_VIEWS:
        return True
    aliases = bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)
    # A composite such as `contiguous` declares a view and copies when it has to.
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return aliases and not func.has_kernel_for_dispatch_key(composite)


def signature(name: str, parts: tuple[Any, ...]) -> int:
    """Return the CRC-32 of an op's name and the shapes and dtypes of its tensors.

    An op without tensor arguments has the sizes and the dtype of what it makes instead.

    The same in every process, unlike `hash`; a program's ops are compared with it in order.
    """
    return zlib.crc32(f"{name}{parts}".encode())
