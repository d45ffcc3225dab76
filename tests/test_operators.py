"""What an operator reads, writes and makes, seen through the op stream."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from watched import Seen, ops_of

from teraio.profiler.operators import Operator, describe, signature

aten = torch.ops.aten
R, W, RW = 1, 2, 3


def last(function: Callable[[], Any]) -> Seen:
    return ops_of(function)[-1]


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


A, B = zeros(4, 4), zeros(4, 4)


@pytest.mark.parametrize(
    ("function", "name", "access"),
    [
        (lambda: A + B, "aten.add.Tensor", [R, R, W]),
        (lambda: A + A, "aten.add.Tensor", [R, W]),
        (lambda: A.clone().add_(B), "aten.add_.Tensor", [RW, R]),
        (lambda: torch.add(A, B, out=zeros(4, 4)), "aten.add.out", [R, R, RW]),
        (lambda: zeros(3).fill_(1.0), "aten.fill_.Scalar", [RW]),
        (lambda: torch.zeros_like(A), "aten.zeros_like.default", [W]),
        (lambda: torch.empty_like(A), "aten.empty_like.default", [W]),
        (lambda: A.new_zeros(2), "aten.new_zeros.default", [W]),
        (lambda: A.new_full((2,), 1.0), "aten.new_full.default", [W]),
        (lambda: torch.rand_like(A), "aten.rand_like.default", [W]),
        (lambda: torch.arange(3), "aten.arange.default", [W]),
        (lambda: A.t().contiguous(), "aten.clone.default", [R, W]),
        (lambda: A[0].item(), "", []),
        (lambda: A.sum().item(), "aten._local_scalar_dense.default", [R]),
        (lambda: torch.sort(A), "aten.sort.default", [R, W, W]),
        (lambda: torch.cat([A, B, A]), "aten.cat.default", [R, R, W]),
        (lambda: torch.stack([A, B]), "aten.stack.default", [R, R, W]),
        (lambda: A.expand(2, 4, 4).clone(), "aten.clone.default", [R, W]),
        (lambda: zeros(4, 4).index_put_((torch.tensor([1]),), zeros(4)), "aten.index_put_.default",
         [RW, R, R]),
        (lambda: torch._foreach_add_([zeros(2), zeros(3)], 1.0), "aten._foreach_add_.Scalar",
         [RW, RW]),
        (lambda: torch._foreach_norm([A, B]), "aten._foreach_norm.Scalar", [R, R, W, W]),
        (lambda: torch._foreach_add_([zeros(2)], [zeros(2)]), "aten._foreach_add_.List", [RW, R]),
        (lambda: torch._fused_sgd_([zeros(2)], [zeros(2)], [], weight_decay=0.0, momentum=0.0,
         lr=1.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=True),
         "aten._fused_sgd_.default", [RW, RW]),
    ],
)  # fmt: skip
def test_accesses(function: Callable[[], Any], name: str, access: list[int]) -> None:
    if not name:
        with pytest.raises(RuntimeError, match="cannot be converted"):
            function()
        return
    seen = last(function)
    assert (seen.name, seen.access) == (name, access)
    assert not seen.is_view


@pytest.mark.parametrize(
    "function",
    [
        lambda: A.view(16),
        lambda: A.t(),
        lambda: A.transpose(0, 1),
        lambda: A[1:3, ::2],
        lambda: A.detach(),
        lambda: A.data,
        lambda: A.expand(2, 4, 4),
        lambda: A.reshape(2, 8),
        lambda: A.unbind(),
        lambda: A.split(2),
        lambda: A.chunk(2),
        lambda: A.as_strided((2,), (1,)),
        lambda: A.unsqueeze(0).squeeze(),
        lambda: A.view(torch.int32),
        lambda: A.diagonal(),
        lambda: A.unfold(0, 2, 1),
        lambda: torch.view_as_complex(A.view(4, 2, 2)),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.from_numpy(A.numpy()),
        lambda: aten._unsafe_view.default(A, [16]),
        lambda: A.alias() if hasattr(A, "alias") else aten.alias.default(A),
    ],
)
def test_views_access_nothing(function: Callable[[], Any]) -> None:
    for seen in ops_of(function):
        assert seen.is_view, seen.name
        assert len(seen.blocks) == 1, "a view shares its storage"
        assert seen.first_new == 1


def test_reshape_that_has_to_copy_is_no_view() -> None:
    names = [(seen.name, seen.is_view) for seen in ops_of(lambda: A.t().reshape(16))]
    assert ("aten.clone.default", False) in names


@pytest.mark.parametrize("composite", ["contiguous", "reshape", "to", "expand_as"])
def test_a_composite_that_may_copy_is_not_taken_for_a_view(composite: str) -> None:
    for overload in getattr(aten, composite).overloads():
        func = getattr(getattr(aten, composite), overload)
        if torch._C._dispatch_has_kernel(func.name()):
            assert not describe(func).is_view, func


def test_an_expanded_or_sliced_tensor_is_its_whole_storage() -> None:
    base = torch.zeros(1000)
    for part in (base.expand(4, 1000), base[10:90:2], base.as_strided((3,), (300,))):
        [seen] = ops_of(functools.partial(torch.sum, part))
        assert seen.nbytes[0] == 4000


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_updates_what_its_schema_keeps_quiet_about(training: bool) -> None:
    mean, var = zeros(3), torch.ones(3)
    images, weight, bias = torch.randn(2, 3, 4, 4), torch.ones(3), zeros(3)

    def norm() -> torch.Tensor:
        return torch.nn.functional.batch_norm(images, mean, var, weight, bias, training)

    seen = last(norm)
    assert "batch_norm" in seen.name
    assert seen.access[:5] == [R, R, R, RW, RW]
    before = mean.clone()
    norm()
    assert torch.equal(before, mean) != training, (
        "only training updates them; writes are an upper bound"
    )


def _is_changed(before: torch.Tensor, after: torch.Tensor) -> bool:
    return not torch.equal(before, after)


@pytest.mark.parametrize(
    "overload",
    ["native_batch_norm.default", "_native_batch_norm_legit.default",
     "batch_norm_update_stats.default"],
)  # fmt: skip
def test_every_batch_norm_that_runs_here_declares_what_it_writes(overload: str) -> None:
    packet, name = overload.split(".")
    func = getattr(getattr(aten, packet), name)
    operator = describe(func)
    given: dict[str, Any] = {
        "input": torch.randn(4, 3), "weight": torch.ones(3), "bias": zeros(3),
        "running_mean": zeros(3), "running_var": torch.ones(3),
        "training": True, "momentum": 0.1, "eps": 1e-5,
    }  # fmt: skip
    arguments = [given[argument.name] for argument in func._schema.arguments]
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    func(*arguments)
    for position, (old, new) in enumerate(zip(before, arguments, strict=True)):
        if isinstance(new, torch.Tensor) and _is_changed(old, new):
            assert position in operator.written, func._schema.arguments[position].name


@torch.library.custom_op("teraio_test::scale_", mutates_args={"x"})
def _scale_(x: torch.Tensor, by: torch.Tensor) -> None:
    x *= by


def test_an_operator_from_elsewhere_may_write_all_it_is_given() -> None:
    seen = last(lambda: _scale_(zeros(2), torch.ones(1)))
    assert (seen.name, seen.access) == ("teraio_test.scale_.default", [RW, RW])


def test_what_has_no_schema_may_write_anything() -> None:
    assert describe(torch.ops.higher_order.cond).writes_all


def test_only_the_foreach_family_is_cut() -> None:
    assert describe(aten._foreach_mul_.Scalar).is_list
    assert describe(aten._foreach_copy_.default).is_list
    assert not describe(aten.cat.default).is_list
    assert not describe(aten._fused_adamw_.default).is_list
    assert not describe(aten._amp_foreach_non_finite_check_and_unscale_.default).is_list


def test_writes_are_found_by_position_and_by_name() -> None:
    operator = describe(aten.add.out)
    assert {"out", 3} <= operator.written
    seen = last(lambda: aten.add.out(A, B, out=zeros(4, 4)))
    assert seen.access == [R, R, RW]


def signatures(*functions: Callable[[], Any]) -> list[int]:
    return [last(function).signature for function in functions]


def test_signatures_tell_names_shapes_and_dtypes_apart() -> None:
    found = signatures(
        lambda: zeros(2) + 1,
        lambda: zeros(3) + 1,
        lambda: zeros(3, 1) + 1,
        lambda: torch.zeros(3, dtype=torch.float64) + 1,
        lambda: zeros(3) * 1,
        lambda: zeros(3) + zeros(3),
        lambda: torch.zeros(3),
        lambda: torch.zeros(4),
        lambda: torch.zeros(3, dtype=torch.int64),
        lambda: torch.arange(3),
        lambda: torch.arange(4),
        lambda: torch.eye(3),
        lambda: torch.eye(4),
        lambda: torch.empty_strided((3, 3), (3, 1)),
        lambda: torch.empty_strided((3, 3), (30, 1)),
    )
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: zeros(3) + 1, lambda: zeros(3) + 2),
        (lambda: torch.full((3,), 0.25), lambda: torch.full((3,), 0.5)),
        (lambda: torch.full((), 1), lambda: torch.full((), 2)),
        (lambda: torch.scalar_tensor(1.0), lambda: torch.scalar_tensor(2.0)),
        (lambda: torch.randint(5, (3,)), lambda: torch.randint(6, (3,))),
        (lambda: torch.randint(1, 5, (3,)), lambda: torch.randint(2, 5, (3,))),
        (lambda: torch.normal(0.0, 1.0, (3,)), lambda: torch.normal(0.5, 2.0, (3,))),
        (lambda: torch.linspace(0, 1, 5), lambda: torch.linspace(0, 2, 5)),
        (lambda: torch.arange(0.0, 3.0), lambda: torch.arange(0.0, 3.0)),
    ],
)
def test_signatures_do_not_depend_on_values(
    one: Callable[[], Any], other: Callable[[], Any]
) -> None:
    assert len(set(signatures(one, other))) == 1


def test_a_signature_is_the_same_in_every_process() -> None:
    words = b"aten.add.Tensor(torch.Size([2, 3]), torch.float32)"
    assert signature("aten.add.Tensor", (torch.Size([2, 3]), torch.float32)) == zlib.crc32(words)


def test_an_operator_is_plain_data() -> None:
    assert describe(aten.mul.Tensor) == Operator("aten.mul.Tensor", repeatable=True)
    assert describe(aten.zeros.default).sizes == (0,)
    assert describe(aten.randint.low).sizes == (2,)


def test_what_may_be_called_again_and_what_may_resize() -> None:
    for written in (aten.add_.Tensor, aten.add.out, aten.resize_.default):
        assert not describe(written).repeatable
    assert not describe(aten.native_dropout.default).repeatable  # it draws random numbers
    assert not describe(aten.bernoulli.default).repeatable
    assert describe(aten.mm.default).repeatable
    for resizing in (aten.add.out, aten.resize_.default, aten.set_.source_Storage):
        assert describe(resizing).resizes
    for keeping in (aten.add_.Tensor, aten._foreach_add_.List, aten.copy_.default):
        assert not describe(keeping).resizes
