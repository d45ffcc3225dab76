"""Threads beside the program's own find what they touch, and nothing else changes for them."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from away import everything_away
from watched import watch

from teraio.profiler.opstream import OpStream
from teraio.profiler.storages import Block, StorageTable
from teraio.profiler.threads import bystanders


def _in_thread(function: Any) -> Any:
    """Call a function in a thread and return what it returned."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: results.put(function()))
    thread.start()
    thread.join()
    return results.get_nowait()


def test_an_absent_tensor_is_there_in_another_thread() -> None:
    with everything_away() as away:
        tensor = torch.arange(32.0) * 3
        torch.zeros(1) + 1
        assert away.is_away(tensor)
        assert _in_thread(lambda: (tensor + 1).tolist()) == (torch.arange(32.0) * 3 + 1).tolist()


@pytest.mark.parametrize("inside", ["list", "keyword", "view", "printed", "sparse"])
def test_however_it_is_given(inside: str) -> None:
    with everything_away():
        tensor = torch.ones(4) * 3
        sparse = torch.eye(3).to_sparse() * 3
        calls = {
            "list": lambda: torch.cat([tensor, tensor]).sum().item() / 2,
            "keyword": lambda: torch.add(input=tensor, other=0).sum().item(),
            "view": lambda: tensor.view(2, 2).t().sum().item(),
            "printed": lambda: 12.0 if "3., 3., 3., 3." in repr(tensor) else 0.0,
            "sparse": lambda: (sparse * 4).sum().item() / 3,
        }
        torch.zeros(1) + 1
        assert _in_thread(calls[inside]) == 12.0


def test_backward_in_another_thread() -> None:
    with everything_away():
        weight = torch.ones(4, requires_grad=True)
        loss = (weight * weight * 3).sum()
        _in_thread(loss.backward)
        assert weight.grad is not None
        assert weight.grad.tolist() == [6.0] * 4


def test_ops_of_other_threads_have_no_number() -> None:
    stream, watcher = watch()
    with bystanders(stream), stream:
        tensor = torch.ones(2)
        assert _in_thread(lambda: (tensor + 1).sum().item()) == 4
        tensor * 2
    assert watcher.names == ["aten.ones.default", "aten.mul.Tensor"]


def test_what_other_threads_make_is_nobodys_until_the_program_uses_it() -> None:
    stream, _ = watch()
    with bystanders(stream), stream:
        made = _in_thread(lambda: torch.ones(3) + 1)
        assert not list(stream.table)
        made + 1
        assert len(list(stream.table)) == 1


def test_many_threads_and_the_program_at_once() -> None:
    with everything_away():
        shared = torch.ones(64) * 2

        def work(number: int) -> float:
            own = torch.full((64,), float(number))
            for _ in range(10):
                own = own + shared
            return own.sum().item() / 64

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work, number) for number in range(8)]
            mine = shared.clone()
            for _ in range(20):
                mine = mine + shared
            results = [future.result() for future in futures]
    assert results == [number + 20.0 for number in range(8)]
    assert mine.tolist() == [42.0] * 64


def test_an_error_in_a_thread_is_the_threads() -> None:
    stream, _ = watch()
    with bystanders(stream), stream:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(torch.mm, torch.ones(2, 2), torch.ones(3, 3))
            with pytest.raises(RuntimeError, match="cannot be multiplied"):
                future.result()
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


class Keeper(threading.Thread):
    """A thread that holds a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor = torch.ones(8)

    def run(self) -> None:
        self.result = self.tensor + 1


def test_a_finished_thread_does_not_outlive_its_last_reference() -> None:
    stream, _ = watch()
    gc.collect()
    gc.disable()
    try:
        with bystanders(stream):
            thread = Keeper()
            thread.start()
            thread.join()
            storage = weakref.ref(thread.tensor.untyped_storage())
            assert thread.result.sum().item() == 16
            del thread
            assert storage() is None
    finally:
        gc.enable()


def test_arguments_are_let_go_when_the_thread_ends() -> None:
    stream, _ = watch()
    with bystanders(stream):
        tensor = torch.ones(8)
        storage = weakref.ref(tensor.untyped_storage())
        thread = threading.Thread(target=len, args=(tensor,))
        thread.start()
        thread.join()
        del tensor
        assert storage() is None


def test_threads_are_put_back() -> None:
    start = threading.Thread.start
    stream: OpStream[Block] = OpStream(StorageTable(Block), [])
    with pytest.raises(ZeroDivisionError), bystanders(stream):
        assert threading.Thread.start is not start
        1 / 0  # noqa: B018
    assert threading.Thread.start is start


def test_a_thread_started_before_runs_as_it_was() -> None:
    go: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    back: queue.SimpleQueue[float] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: back.put((go.get() + 1).sum().item()))
    thread.start()
    stream, watcher = watch()
    with bystanders(stream), stream:
        go.put(torch.ones(2))
        thread.join()
    assert back.get() == 4
    assert watcher.names == ["aten.ones.default"]
