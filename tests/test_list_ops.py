"""Operators on lists are cut into groups without a trace in the results."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from away import everything_away
from watched import ops_of, watch

import teraio.profiler.partition


@pytest.fixture
def cut_finely(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(teraio.profiler.partition, "SMALLEST", 64)
    yield


def lists(seed: int) -> tuple[list[torch.Tensor], ...]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [3, 40, 1, 17, 16, 2, 9, 33]
    return tuple([torch.rand(size, generator=generator) + 0.5 for size in sizes] for _ in range(3))


def arguments(style: str) -> tuple[Any, ...]:
    xs, ys, zs = lists(0)
    scalars = [float(i + 1) for i in range(len(xs))]
    scalar = torch.tensor(1.5)
    found: dict[str, tuple[Any, ...]] = {
        "list": (xs,),
        "list, scalar": (xs, 2.0),
        "list, scalars": (xs, scalars),
        "list, tensor": (xs, scalar),
        "list, list": (xs, ys),
        "list, list, scalar": (xs, ys, 0.5),
        "list, list, scalars": (xs, ys, scalars),
        "list, list, list": (xs, ys, zs),
        "list, list, list, scalar": (xs, ys, zs, 0.5),
        "list, list, list, scalars": (xs, ys, zs, scalars),
        "list, list, list, tensor": (xs, ys, zs, torch.tensor(scalars)),
        "scalar, list": (2.0, xs),
        "matrices": ([x.outer(x) for x in xs], [y.outer(y) for y in ys]),
    }
    return found[style]


STYLES = [
    "list", "list, scalar", "list, scalars", "list, tensor", "list, list", "list, list, scalar",
    "list, list, scalars", "list, list, list", "list, list, list, scalar",
    "list, list, list, scalars", "list, list, list, tensor", "scalar, list",
    "matrices",
]  # fmt: skip


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


FOREACH = sorted(name for name in dir(torch) if name.startswith("_foreach_"))


def test_there_are_foreach_functions_to_try() -> None:
    assert len(FOREACH) > 50


@pytest.mark.usefixtures("cut_finely")
@pytest.mark.parametrize("name", FOREACH)
def test_a_list_cut_gives_the_bits_of_the_list_whole(name: str) -> None:
    function = getattr(torch, name)
    tried = 0
    for style in STYLES:
        whole = arguments(style)
        try:
            expected = function(*whole)
        except (TypeError, RuntimeError, IndexError, ValueError):
            continue  # it does not take these arguments
        cut = arguments(style)
        stream, watcher = watch()
        with stream:
            result = function(*cut)
        assert bits(result) == bits(expected), style
        assert type(result) is type(expected), style
        assert bits(cut) == bits(whole), style
        own = [n for n in watcher.names if n.startswith(f"aten.{name}.")]
        whole_only = style in ("list, list, list, tensor", "scalar, list")
        assert len(own) == 1 if whole_only else len(own) > 1, style
        tried += 1
    assert tried, "no way was found to call it"


@pytest.mark.usefixtures("cut_finely")
def test_empty_tensors_are_entries_too() -> None:
    xs = [torch.ones(n) for n in (0, 40, 0, 0, 30, 0)]
    with everything_away():
        norms = torch._foreach_norm(xs)
        torch._foreach_add_(xs, 1.0)
        assert [n.item() ** 2 for n in norms] == pytest.approx([0, 40, 0, 0, 30, 0])
        assert [x.sum().item() for x in xs] == [0, 80, 0, 0, 60, 0]


@pytest.mark.usefixtures("cut_finely")
@pytest.mark.parametrize("inference", [True, False])
def test_lists_of_unequal_length_are_refused_as_ever(inference: bool) -> None:
    xs, ys, _ = lists(0)
    for other in (ys[:1], ys[:2], ys[:-1]):
        before = bits(xs)
        with torch.inference_mode(inference), pytest.raises(RuntimeError) as plain:
            torch._foreach_add_(xs, other)
        stream, _ = watch()
        with stream, torch.inference_mode(inference), pytest.raises(RuntimeError) as watched:
            torch._foreach_add_(xs, other)
        assert str(watched.value) == str(plain.value)
        assert bits(xs) == before


@pytest.mark.usefixtures("cut_finely")
def test_tensors_that_share_memory_are_updated_in_order() -> None:
    def program() -> list[torch.Tensor]:
        base = torch.arange(60.0)
        parts = [base[i : i + 30] for i in range(0, 30, 5)]
        torch._foreach_add_(parts, parts)
        return parts

    plain = program()
    with everything_away():
        away = program()
        assert bits(away) == bits(plain)


@pytest.mark.usefixtures("cut_finely")
@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("foreach", [True, False, None])
def test_gradient_clipping_gives_the_same_bits(norm: float, foreach: bool | None) -> None:
    def clipped() -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(13, 13) for _ in range(5)])
        model(torch.randn(4, 13)).square().sum().backward()
        total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm, foreach=foreach)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.001, foreach=foreach)
        return total, [p.grad for p in model.parameters()]

    plain = clipped()
    with everything_away():
        away = clipped()
        assert bits(away) == bits(plain)


@pytest.mark.usefixtures("cut_finely")
def test_lists_in_keyword_arguments_are_cut_along() -> None:
    xs, ys, _ = lists(0)
    whole = [x.clone() for x in xs]
    torch.ops.aten._foreach_add_.List(whole, ys)
    stream, watcher = watch()
    with stream:
        torch.ops.aten._foreach_add_.List(xs, other=ys)
    assert bits(xs) == bits(whole)
    assert len(watcher.names) > 1


def test_short_lists_stay_whole() -> None:
    xs, _, _ = lists(0)
    assert [s.name for s in ops_of(functools.partial(torch._foreach_mul_, xs, 2.0))] == [
        "aten._foreach_mul_.Scalar"
    ]
