"""Storages are told apart while they live, and their ids are never used again."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from watched import watch

from teraio.profiler.opstream import OpStream
from teraio.profiler.storages import (
    Block,
    StorageTable,
    owned_by_torch,
    storages_of,
    strided_parts,
    tensors_in,
    tracked_device,
)


def fresh() -> StorageTable[Block]:
    return StorageTable(Block)


def id_of(table: StorageTable[Block], tensor: torch.Tensor) -> int:
    return table.block(tensor.untyped_storage()).id


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda t: t,
    "slice": lambda t: t[1:3],
    "transpose": lambda t: t.t(),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "unbind": lambda t: t.unbind()[2],
    "expand": lambda t: t.expand(2, 4, 4),
    "parameter": torch.nn.Parameter,
    "other dtype": lambda t: t.view(torch.int32),
    "set_": lambda t: torch.empty(0).set_(t.untyped_storage()),
    "as_subclass": lambda t: t.as_subclass(torch.nn.Parameter),
    "split": lambda t: t.split(2)[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_one_storage(name: str) -> None:
    table = fresh()
    base = torch.zeros(4, 4)
    assert id_of(table, VIEWS[name](base)) == id_of(table, base)
    assert len(list(table)) == 1


def test_copies_are_another() -> None:
    table = fresh()
    base = torch.zeros(4, 4)
    others = [base.clone(), base + 0, copy.deepcopy(base), torch.empty(0), torch.empty(0)]
    assert len({id_of(table, tensor) for tensor in [base, *others]}) == 6


def test_ids_are_not_used_again_when_addresses_are() -> None:
    table = fresh()
    ids, addresses = [], set()
    for _ in range(200):
        tensor = torch.zeros(1000)
        ids.append(id_of(table, tensor))
        addresses.add((tensor.data_ptr(), tensor.untyped_storage()._cdata))
        del tensor
    assert len(set(ids)) == 200
    assert len(addresses) < 200, "no address was used again; the test proves nothing"
    assert not list(table)


def test_layers_of_equal_shape_do_not_share_a_life() -> None:
    """Reproducer of huggingface/trl#6241: the input grows from step to step."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(6)]
    model = torch.nn.Sequential(*[m for layer in layers for m in (layer, torch.nn.Tanh())])
    x = torch.randn(4, 16)
    stream, watcher = watch()
    with stream:
        for factor in (1, 2, 3):
            model.zero_grad()
            model(x * factor).sum().backward()
            stream.end_step()
    outputs = [
        (seen.step, seen.blocks[seen.first_new])
        for seen in watcher.seen
        if seen.name == "aten.tanh.default"
    ]
    assert len(outputs) == 18
    assert len({block for _, block in outputs}) == 18
    for step, block in outputs:
        used_in = {seen.step for seen in watcher.seen if block in seen.blocks}
        assert used_in == {step}


def test_a_death_is_stamped_with_the_op_that_runs() -> None:
    table = fresh()
    tensor = torch.zeros(8)
    block = table.block(tensor.untyped_storage())
    table.position = (3, 17)
    deaths, others = table.deaths(), table.deaths()
    view = tensor[2:]
    del tensor
    assert not deaths, "a view keeps it alive"
    assert block.storage is not None
    del view
    assert block.storage is None
    assert list(deaths) == list(others) == [(block, (3, 17))]
    deaths.clear()
    assert others, "each reader has a queue of its own"


def test_autograd_keeps_what_it_saved_and_lets_it_go() -> None:
    stream, watcher = watch()
    deaths = stream.table.deaths()
    with stream:
        weight = torch.ones(8, requires_grad=True)
        hidden = weight * 2
        block = stream.table.block(hidden.untyped_storage())
        loss = (hidden * hidden).sum()
        del hidden
        assert block.storage is not None, "saved for backward"
        loss.backward()
        assert block.storage is None
    [(_, where)] = [(b, w) for b, w in deaths if b is block]
    died_in = next(seen for seen in watcher.seen if (seen.step, seen.index) == where)
    last_use = max(seen.index for seen in watcher.seen if block.id in seen.blocks)
    assert died_in.index >= last_use


def test_a_cycle_lives_until_it_is_collected() -> None:
    table = fresh()
    gc.disable()
    try:
        holder: dict[str, Any] = {"tensor": torch.zeros(8)}
        holder["self"] = holder
        block = table.block(holder["tensor"].untyped_storage())
        del holder
        assert block.storage is not None
        gc.collect()
        assert block.storage is None
    finally:
        gc.enable()


def test_the_table_keeps_nothing_alive() -> None:
    table = fresh()
    tensor = torch.zeros(8)
    block = table.block(tensor.untyped_storage())
    gc.collect()
    found = gc.get_referrers(tensor)
    assert not any(isinstance(one, (Block, StorageTable)) for one in found)
    assert table.known(tensor.untyped_storage()) is block
    key = block.key
    del tensor, found
    assert key not in table._blocks


def test_a_storage_nobody_met_is_not_made_known_by_asking() -> None:
    table = fresh()
    tensor = torch.zeros(8)
    assert table.known(tensor.untyped_storage()) is None
    assert not list(table)


def test_deaths_in_other_threads_are_queued() -> None:
    table = fresh()
    deaths = table.deaths()
    tensors = [torch.zeros(8) for _ in range(400)]
    for tensor in tensors:
        table.block(tensor.untyped_storage())
    del tensor
    halves = [tensors[0::2], tensors[1::2]]
    tensors.clear()
    threads = [threading.Thread(target=half.clear) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(deaths) == 400
    assert not list(table)


def test_a_table_may_change_while_it_is_walked() -> None:
    table = fresh()
    tensors = [torch.zeros(8) for _ in range(10)]
    for tensor in tensors:
        table.block(tensor.untyped_storage())
    del tensor
    for _ in table:
        if tensors:
            tensors.pop()
    assert not list(table)


def test_tensors_are_found_in_nested_arguments() -> None:
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    found = list(tensors_in([one, (two, {"a": [three], "b": 4}), None, "text"]))
    assert [len(tensor) for tensor in found] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_their_parts() -> None:
    dense = torch.eye(4)
    for layout, count in [
        (dense, 1),
        (dense.to_sparse(), 2),
        (dense.to_sparse_csr(), 3),
        (dense.to_sparse_csc(), 3),
        (dense.to_sparse_bsr((2, 2)), 3),
        (dense.to_sparse_bsc((2, 2)), 3),
    ]:
        parts = strided_parts(layout)
        assert len(parts) == count
        assert all(part.layout is torch.strided for part in parts)
        assert len(storages_of(layout)) == count


def test_tensors_without_a_storage_have_none() -> None:
    seen = []

    def inside(value: torch.Tensor) -> torch.Tensor:
        seen.append(storages_of(value))
        return value * 1

    base = torch.zeros(3)
    torch.vmap(inside)(base)
    assert [s._cdata for s in seen[0]] == [base.untyped_storage()._cdata]
    assert storages_of(torch.zeros(3).to_mkldnn()) == []


def test_whose_memory_it_is() -> None:
    assert owned_by_torch(torch.zeros(3).untyped_storage())
    assert not owned_by_torch(torch.from_numpy(np.zeros(3)).untyped_storage())
    assert not owned_by_torch(torch.frombuffer(bytearray(8), dtype=torch.uint8).untyped_storage())
    assert not owned_by_torch(torch.zeros(3).share_memory_().untyped_storage())
    assert not owned_by_torch(torch._efficientzerotensor(3).untyped_storage()), "there is none"
    assert not owned_by_torch(torch.get_rng_state().clone().untyped_storage())


def test_without_an_accelerator_the_cpu_is_the_device() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has one")
    assert tracked_device() == torch.device("cpu")


def test_meta_and_fake_tensors_are_not_counted() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    stream, watcher = watch()
    with stream:
        torch.zeros(3, device="meta") + 1
        with FakeTensorMode():
            torch.zeros(3) + 1
    assert isinstance(stream, OpStream)
    assert not any(seen.blocks for seen in watcher.seen)
    assert not list(stream.table)
