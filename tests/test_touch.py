"""Every way to reach memory without an op gives the right values of a storage that is away."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.dlpack
from away import Away, everything_away
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from teraio.profiler.opstream import OpStream
from teraio.profiler.storages import Block, StorageTable, can_swap, owned_by_torch
from teraio.profiler.touch import Hold, touch_points


@pytest.fixture
def away() -> Iterator[Away]:
    with everything_away() as entered:
        yield entered


def _saved(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    file = io.BytesIO()
    torch.save({"x": tensor}, file, **options)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)["x"]
    return loaded


def _at_address(address: int, tensor: torch.Tensor) -> list[float]:
    span = 1 + (tensor.numel() - 1) * tensor.stride(0)
    return list((ctypes.c_float * span).from_address(address))[:: tensor.stride(0)]


def _from_storage(tensor: torch.Tensor, raw: bytes) -> list[float]:
    whole = np.frombuffer(raw, dtype=np.float32)
    start, stride = tensor.storage_offset(), tensor.stride(0)
    return whole[start : start + stride * tensor.numel() : stride].tolist()


def _forked(tensor: torch.Tensor) -> list[float]:
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(into, pickle.dumps(torch.add(tensor, 0).tolist()))
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        found: list[float] = pickle.load(pipe)
    os.waitpid(child, 0)
    return found


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tolist": lambda t: t.tolist(),
    "item": lambda t: [t[i].item() for i in range(len(t))],
    "float": lambda t: [float(v) for v in t],
    "numpy": lambda t: t.numpy().tolist(),
    "asarray": lambda t: np.asarray(t).tolist(),
    "array": lambda t: np.array(t).tolist(),
    "ufunc": lambda t: np.add(t, 0).tolist(),
    "data_ptr": lambda t: _at_address(t.data_ptr(), t),
    "const_data_ptr": lambda t: _at_address(t.const_data_ptr(), t),
    "from_dlpack": lambda t: torch.from_dlpack(t).tolist(),
    "numpy from_dlpack": lambda t: np.from_dlpack(t).tolist(),
    "to_dlpack": lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)).tolist(),
    "deepcopy": lambda t: copy.deepcopy(t).tolist(),
    "deepcopy in a list": lambda t: copy.deepcopy([t, t])[1].tolist(),
    "copy": lambda t: copy.copy(t).tolist(),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)).tolist(),
    "torch.save": lambda t: _saved(t).tolist(),
    "torch.save, old": lambda t: _saved(t, _use_new_zipfile_serialization=False).tolist(),
    "safetensors": lambda t: load_safetensors(save_safetensors({"x": t.contiguous()}))[
        "x"
    ].tolist(),
    "repr": lambda t: eval(repr(t), {"tensor": list}),
    "str": lambda t: eval(str(t), {"tensor": list}),
    "format": lambda t: eval(f"{t}", {"tensor": list}),
    "format of one": lambda t: [float(f"{v:.1f}") for v in t],
    "share_memory_": lambda t: t.share_memory_().tolist(),
    "apply_": lambda t: t.apply_(lambda v: v).tolist(),
    "map_": lambda t: t.map_(t, lambda a, _: a).tolist(),
    "map2_": lambda t: t.map2_(t, t, lambda a, _b, _c: a).tolist(),
    "storage": lambda t: _from_storage(t, bytes(t.untyped_storage())),
    "storage.tolist": lambda t: _from_storage(t, bytes(t.untyped_storage().tolist())),
    "storage.clone": lambda t: _from_storage(t, bytes(t.untyped_storage().clone())),
    "storage deepcopy": lambda t: _from_storage(t, bytes(copy.deepcopy(t.untyped_storage()))),
    "storage.data_ptr": lambda t: _at_address(
        t.untyped_storage().data_ptr() + 4 * t.storage_offset(), t
    ),
    "typed storage": lambda t: t.storage().tolist()[t.storage_offset() :: t.stride(0)][: len(t)],
    "fork": _forked,
    "vmap": lambda t: [eval(text, {"tensor": float}) for text in _printed_by_vmap(t)],
}


def _printed_by_vmap(tensor: torch.Tensor) -> list[str]:
    shown: list[str] = []

    def show(value: torch.Tensor) -> torch.Tensor:
        shown.append(repr(value).partition("value=")[2].strip().removesuffix(")").strip())
        return value * 1

    torch.vmap(show)(tensor)
    whole = eval(shown[0], {"tensor": list})
    return [f"tensor({value})" for value in whole]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:__array_")
@pytest.mark.parametrize("part", ["base", "view"])
@pytest.mark.parametrize("name", READS)
def test_values_of_an_absent_storage(away: Away, name: str, part: str) -> None:
    base = torch.arange(16.0) * 3
    tensor = {"base": base, "view": base[3:14:2]}[part]
    expected = (tensor + 0).tolist()
    base + 1
    assert away.is_away(base)

    assert READS[name](tensor) == expected
    for held in (base, tensor):  # and it is still right on the next trip
        torch.add(held, 1)
    assert (tensor + 0).tolist() == expected
    assert torch.sum(base).item() == 3 * 120


def _fill(storage: torch.UntypedStorage) -> None:
    storage.fill_(0)


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda t: t.numpy().fill(0),
    "dlpack": lambda t: torch.from_dlpack(t).zero_(),
    "apply_": lambda t: t.apply_(lambda _: 0.0),
    "map_": lambda t: t.map_(t, lambda _a, _b: 0.0),
    "data_ptr": lambda t: ctypes.memset(t.data_ptr(), 0, 4 * t.numel()),
    "storage.fill_": lambda t: _fill(t.untyped_storage()),
    "storage[]": lambda t: [t.untyped_storage().__setitem__(i, 0) for i in range(4 * t.numel())],
    "storage.copy_": lambda t: t.untyped_storage().copy_(
        torch.zeros(t.numel(), dtype=torch.float32).untyped_storage()
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_without_an_op_are_not_lost(away: Away, name: str) -> None:
    tensor = torch.arange(32.0) * 3
    tensor + 1
    tensor + 1  # by now the tier has a copy, and a clean one would be dropped
    assert away.is_away(tensor)
    WRITES[name](tensor)
    torch.ones(1) + 1
    torch.ones(1) + 1
    assert torch.count_nonzero(tensor).item() == 0


@pytest.mark.parametrize(
    ("touch", "hold"),
    [
        (lambda t: t.tolist(), Hold.NOT),
        (repr, Hold.NOT),
        (lambda t: t.data_ptr(), Hold.STEP),
        (lambda t: t.numpy(), Hold.LIFE),
        (lambda t: t.share_memory_(), Hold.LIFE),
        (torch.from_dlpack, Hold.LIFE),
    ],
)
def test_how_long_a_touched_storage_stays(
    away: Away, touch: Callable[[torch.Tensor], Any], hold: Hold
) -> None:
    tensor = torch.arange(32.0) * 3
    tensor + 1
    touch(tensor)
    torch.ones(1) + 1
    assert away.is_away(tensor) == (hold is Hold.NOT)
    away.pager.where = (away.pager.where[0] + 1, 0)  # the next step
    away.send()
    assert away.is_away(tensor) == (hold is not Hold.LIFE)


def test_the_address_is_good_until_the_step_ends(away: Away) -> None:
    tensor = torch.arange(32.0) * 3
    tensor + 1
    address = tensor.data_ptr()
    tensor += 1
    assert _at_address(address, tensor) == (torch.arange(32.0) * 3 + 1).tolist()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_printing_parts_and_wrappers(away: Away) -> None:
    weight = torch.nn.Parameter(torch.ones(3) * 2)
    sparse = torch.eye(3).to_sparse() * 5
    csr = (torch.eye(3) * 7).to_sparse_csr()
    nothing = torch.zeros(0, 3)
    torch.ones(1) + 1
    assert "2., 2., 2." in repr(weight)
    assert "values=tensor([5., 5., 5.])" in repr(sparse)
    assert "values=tensor([7., 7., 7.])" in repr(csr)
    assert repr(nothing) == "tensor([], size=(0, 3))"
    assert "device='meta'" in repr(torch.ones(2, device="meta"))


def test_printing_is_no_op_of_the_program(away: Away) -> None:
    stream = torch.utils._python_dispatch._get_current_dispatch_mode()
    assert isinstance(stream, OpStream)
    sparse = torch.eye(3).to_sparse()
    index = stream.index
    repr(sparse)
    torch.arange(4.0).tolist()
    assert stream.index == index + 1


def test_inside_function_transforms(away: Away) -> None:
    tensor = torch.arange(8.0) * 1

    def loss(value: torch.Tensor) -> torch.Tensor:
        repr(tensor)  # fetches while the transform is on
        return (value * value).sum()

    assert torch.func.grad(loss)(tensor).tolist() == (torch.arange(8.0) * 2).tolist()


def test_checkpoints_equal_those_of_a_plain_run() -> None:
    def checkpoint() -> tuple[bytes, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        model[1].weight = model[0].weight
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        return file.getvalue(), copy.deepcopy(model.state_dict())

    plain, state = checkpoint()
    with everything_away():
        away, state_away = checkpoint()
        assert plain == away
        for name, value in state.items():
            assert torch.equal(value, state_away[name])


class Told:
    """Somebody who is told of touches."""

    def __init__(self) -> None:
        self.touches: list[Hold] = []

    def touch(self, storage: torch.UntypedStorage, hold: Hold) -> None:
        self.touches.append(hold)

    def touch_tensor(self, tensor: torch.Tensor, hold: Hold) -> None:
        self.touches.append(hold)


def _methods() -> dict[str, Any]:
    files = torch._C.PyTorchFileReader, torch._C.PyTorchFileWriter
    bucket = torch._C._distributed_c10d.GradBucket
    owners = (torch.Tensor, torch.UntypedStorage, *files, bucket, torch.utils.dlpack)
    return {
        f"{owner.__name__}.{name}": vars(owner)[name] for owner in owners for name in vars(owner)
    }


def test_everything_is_put_back_even_after_an_error() -> None:
    before = _methods()
    told = Told()
    with pytest.raises(ZeroDivisionError), touch_points(told):
        torch.ones(2).tolist()
        1 / 0  # noqa: B018
    assert told.touches == [Hold.NOT]
    assert _methods() == before
    torch.ones(2).tolist()
    assert told.touches == [Hold.NOT]


def test_the_wrapped_methods_keep_their_names() -> None:
    with touch_points(Told()):
        assert torch.Tensor.tolist.__name__ == "tolist"
        assert torch.Tensor.numpy.__doc__


class Counting(torch.Tensor):
    calls: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_sees_no_calls_but_the_programs() -> None:
    tensor = torch.ones(3).as_subclass(Counting)
    with touch_points(OpStream(StorageTable(Block), [])):
        Counting.calls = []
        tensor.tolist()
        assert Counting.calls == ["tolist"]


def test_a_storage_no_op_has_touched_is_nobodys(away: Away) -> None:
    with torch.utils._python_dispatch._disable_current_modes():
        unseen = torch.arange(4.0)
    assert unseen.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert away.touched == []


def test_what_is_loaded_may_be_moved_and_what_is_mapped_may_not(away: Away, tmp_path: Path) -> None:
    if not can_swap(torch.device("cpu")):
        pytest.skip("this torch cannot move what it cannot resize")
    torch.save(torch.arange(6.0), tmp_path / "x.pt")
    mapped = torch.load(tmp_path / "x.pt", mmap=True)
    assert not owned_by_torch(mapped.untyped_storage())
    loaded = torch.load(tmp_path / "x.pt")
    assert owned_by_torch(loaded.untyped_storage())
    assert (loaded + 1).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert away.is_away(loaded)
    assert loaded.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_bucket_that_a_communication_hook_asks_for_stays(tmp_path: Path) -> None:
    import torch.distributed as dist

    told = Told()
    buckets: list[torch.Tensor] = []

    def hook(_, bucket):
        buckets.append(bucket.buffer())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buckets[-1])
        return future

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        model.register_comm_hook(None, hook)
        loss = model(torch.ones(2, 3)).sum()
        with touch_points(told):
            loss.backward()
    finally:
        dist.destroy_process_group()
    assert told.touches == [Hold.LIFE]
    assert buckets[0].numel() == 4


def test_the_state_of_a_generator_is_there_when_it_is_set(away: Away, tmp_path: Path) -> None:
    torch.save(torch.get_rng_state(), tmp_path / "state.pt")
    states = [torch.get_rng_state().clone(), torch.load(tmp_path / "state.pt")]
    expected = torch.rand(3).tolist()
    for state in states:
        state + 1
        torch.set_rng_state(state)
        assert torch.rand(3).tolist() == expected
        assert torch.rand(3, generator=torch.Generator().set_state(state)).tolist() == expected
