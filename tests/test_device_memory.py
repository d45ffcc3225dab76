"""Bytes leave and come back under living tensors, and torch notices nothing."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from away import everything_away
from hypothesis import given
from hypothesis import strategies as st

from teraio.executor.memory import (
    Memory,
    ResizeMemory,
    SwapMemory,
    address_of,
    memory_for,
    new_buffer,
)

CPU = torch.device("cpu")


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(address_of(storage), storage.nbytes())


def round_trip(memory: Memory, tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    content = bytes_of(storage)
    memory.release(storage, "a test")
    buffer = memory.buffer_for(storage, len(content), CPU)
    ctypes.memmove(address_of(buffer), content, len(content))
    memory.attach(storage, buffer)


can_swap = pytest.mark.skipif(
    not hasattr(torch.UntypedStorage, "_swap_data_ptr_"), reason="this torch cannot swap storages"
)
BOTH = pytest.mark.parametrize(
    "memory",
    [pytest.param(SwapMemory(), marks=can_swap), ResizeMemory()],
    ids=lambda memory: memory.name,
)

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_to_the_byte(memory: Memory, dtype: torch.dtype) -> None:
    raw = torch.arange(96, dtype=torch.uint8)
    tensor = (raw % 2 == 0) if dtype is torch.bool else raw.clone().view(dtype)
    before = bytes_of(tensor.untyped_storage())
    shape, stride = tensor.shape, tensor.stride()
    round_trip(memory, tensor)
    assert bytes_of(tensor.untyped_storage()) == before
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (dtype, shape, stride)
    assert tensor.device == CPU


@BOTH
@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]),
        torch.tensor([], dtype=torch.float32).reshape(0, 3),
        torch.randn(1000).expand(4, 1000),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.arange(100.0)[10:90:2],
        torch.randn(4, 4).t(),
        torch.complex(torch.randn(3), torch.randn(3)).conj(),
        torch.randn(3)._neg_view(),
    ],
    ids=["0-dim", "odd floats", "empty", "expanded", "channels_last", "slice", "transposed",
         "conjugated", "negated"],
)  # fmt: skip
def test_every_layout_comes_back(memory: Memory, tensor: torch.Tensor) -> None:
    clone = bytes_of(tensor.untyped_storage())
    facts = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj())
    if tensor.untyped_storage().nbytes():
        round_trip(memory, tensor)
    assert bytes_of(tensor.untyped_storage()) == clone
    assert facts == (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj())


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda: torch.randn(1000).expand(4, 1000), 4000),
        (lambda: torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last), 2304),
        (lambda: torch.arange(100.0)[10:90:2], 400),
    ],
    ids=["expanded", "channels_last", "slice"],
)
def test_what_is_written_is_the_storage_whatever_the_view(
    make: Callable[[], torch.Tensor], nbytes: int
) -> None:
    with everything_away() as away:
        tensor = make()
        facts, values = (tensor.shape, tensor.stride()), tensor.tolist()
        torch.zeros(0)
        written = away.pager.counters.offloaded["host"]
        page = away.page(tensor)
        assert (page.nbytes, page.size) == (nbytes, -(-nbytes // 512) * 512)
        tensor.as_strided((1,), (1,), 0).add_(0)  # now it is dirty
        assert away.is_away(tensor)
        assert away.pager.counters.offloaded["host"] - written == nbytes
        assert (tensor.shape, tensor.stride()) == facts
        assert tensor.tolist() == values


@BOTH
def test_views_and_versions_do_not_notice(memory: Memory) -> None:
    base = torch.arange(12.0, requires_grad=True).clone()
    views = [base[2:], base.view(3, 4).t(), base.detach(), base.data]
    base.add_(1)
    versions = [v._version for v in (base, *views)]
    identity = base.untyped_storage()._cdata
    round_trip(memory, base)
    assert [v._version for v in (base, *views)] == versions
    assert base.untyped_storage()._cdata == identity
    assert views[0].tolist() == [float(i) for i in range(3, 13)]
    assert views[1].tolist() == (torch.arange(12.0) + 1).view(3, 4).t().tolist()
    base.data[0] = 99
    assert views[3][0] == 99


@BOTH
def test_autograd_uses_what_came_back(memory: Memory) -> None:
    x = torch.arange(1.0, 5.0, requires_grad=True)
    hidden = x * 2
    loss = (hidden * hidden).sum()
    round_trip(memory, hidden)
    round_trip(memory, x)
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 16.0, 24.0, 32.0]


def _changed_after_saving() -> torch.Tensor:
    """From pytorch/pytorch#96319."""
    a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = a * 1
    y = b * b
    with torch.no_grad():
        b.mul_(10)
    y.sum().backward()
    assert a.grad is not None
    return a.grad


def test_a_change_after_saving_is_still_an_error() -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as plain:
        _changed_after_saving()
    with (
        everything_away(),
        pytest.raises(RuntimeError, match="modified by an inplace operation") as away,
    ):
        _changed_after_saving()
    assert str(away.value) == str(plain.value)


@can_swap
def test_a_change_after_saving_is_an_error_on_bytes_that_came_back() -> None:
    a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = a * 1
    y = b * b
    round_trip(SwapMemory(), b)
    with torch.no_grad():
        b.mul_(10)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@can_swap
@pytest.mark.parametrize("memory", [SwapMemory()], ids=["swap"])
def test_views_may_be_made_of_what_is_away(memory: SwapMemory) -> None:
    assert memory.views_while_absent
    tensor = torch.arange(12.0)
    content = bytes_of(tensor.untyped_storage())
    memory.release(tensor.untyped_storage(), "a test")
    view = tensor.view(3, 4)[1:].t()
    buffer = new_buffer(48, CPU)
    ctypes.memmove(address_of(buffer), content, 48)
    memory.attach(tensor.untyped_storage(), buffer)
    assert view.tolist() == torch.arange(12.0).view(3, 4)[1:].t().tolist()


@can_swap
def test_memory_is_really_given_back_and_taken() -> None:
    memory = SwapMemory()
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        tensor = torch.empty(1 << 20, dtype=torch.uint8)
        memory.release(tensor.untyped_storage(), "a test")
        buffer = new_buffer(1 << 20, CPU)
        memory.attach(tensor.untyped_storage(), buffer)
        del buffer
        del tensor
    events = profile.kineto_results.events()
    held = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert held == [1 << 20, -(1 << 20)] * 2


def test_new_memory_is_not_filled_and_not_seen() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        storage = new_buffer(4096, CPU)
    finally:
        torch.use_deterministic_algorithms(False)
    assert storage.nbytes() == 4096
    with everything_away() as away:
        new_buffer(4096, CPU)
        assert away.names == []
        wrapped: list[Any] = []

        def inside(x: torch.Tensor) -> torch.Tensor:
            wrapped.append(new_buffer(16, CPU))
            return x * 2

        torch.vmap(inside)(torch.ones(2))
        assert address_of(wrapped[0])


@can_swap
@given(st.lists(st.integers(1, 70_000), min_size=1, max_size=12))
def test_many_may_be_away_at_once_whatever_their_sizes(sizes: list[int]) -> None:
    memory = SwapMemory()
    tensors = [torch.full((size,), size % 251, dtype=torch.uint8) for size in sizes]
    contents = [bytes_of(tensor.untyped_storage()) for tensor in tensors]
    for tensor in tensors:
        memory.release(tensor.untyped_storage(), "a test")
    assert [t.untyped_storage().nbytes() for t in tensors] == sizes
    for tensor, content in zip(reversed(tensors), reversed(contents), strict=True):
        buffer = new_buffer(len(content), CPU)
        ctypes.memmove(address_of(buffer), content, len(content))
        memory.attach(tensor.untyped_storage(), buffer)
    assert [bytes_of(t.untyped_storage()) for t in tensors] == contents


@can_swap
def test_a_buffer_of_another_size_is_refused() -> None:
    tensor = torch.arange(12.0)
    memory = SwapMemory()
    memory.release(tensor.untyped_storage(), "a test")
    with pytest.raises(RuntimeError, match="nbytes"):
        memory.attach(tensor.untyped_storage(), new_buffer(44, CPU))
    memory.attach(tensor.untyped_storage(), new_buffer(48, CPU))


@can_swap
@pytest.mark.parametrize("stray", ["tensor.sum()", "tensor[3:].fill_(1)"])
def test_a_stray_access_ends_the_process_and_gives_no_number(stray: str) -> None:
    program = f"""
        import torch
        from teraio.executor.memory import SwapMemory
        tensor = torch.ones(100_000)
        SwapMemory().release(tensor.untyped_storage(), "a test")
        print(tensor.shape, flush=True)
        print({stray})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    poisoned = done.returncode == 1 and "a test" in done.stderr
    assert done.returncode == -signal.SIGSEGV or poisoned
    assert done.stdout == "torch.Size([100000])\n"


@can_swap
def test_the_best_way_is_chosen() -> None:
    assert isinstance(memory_for(CPU), SwapMemory)
    assert memory_for(CPU).name.startswith("swap")
    assert isinstance(memory_for(torch.device("meta")), ResizeMemory)


def test_without_swapping_storages_are_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "UntypedStorage", object)
    assert isinstance(memory_for(CPU), ResizeMemory)


def test_programs_run_on_resized_storages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import away

    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 6, 6)).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    plain = train()
    monkeypatch.setattr(away, "memory_for", lambda _: ResizeMemory())
    with everything_away():
        for one, other in zip(plain, train(), strict=True):
            assert torch.equal(one, other)
