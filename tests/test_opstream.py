"""The op stream sees every op once, cuts lists without a trace in the results, and is polite."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from away import everything_away
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from watched import Watcher, ops_of, watch

from teraio.profiler.compiled import compiled_regions
from teraio.profiler.opstream import Op, OpStream
from teraio.profiler.storages import Block, StorageTable
from teraio.profiler.touch import Hold


def names(function: Callable[[], Any]) -> list[str]:
    return [seen.name for seen in ops_of(function)]


# Numbering


def test_ops_are_numbered_within_their_step() -> None:
    stream, watcher = watch()
    with stream:
        for _ in range(3):
            torch.zeros(2) + 1
            stream.end_step()
        torch.zeros(2)
    numbers = [(seen.step, seen.index) for seen in watcher.seen]
    assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert watcher.steps == [0, 1, 2]
    assert watcher.begun == watcher.names


def test_the_same_program_has_the_same_ops_twice() -> None:
    def program() -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        model(torch.randn(3, 4)).sum().backward()

    first, second = ops_of(program), ops_of(program)
    assert [s.signature for s in first] == [s.signature for s in second]
    assert [s.blocks for s in first] == [s.blocks for s in second]


def test_forward_and_backward_are_seen() -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        (x * x).sum().backward()

    assert names(program).count("aten.mul.Tensor") == 3


def test_ops_on_other_devices_are_not_ops_of_the_program() -> None:
    stream, watcher = watch()
    with stream:
        (torch.zeros(2, device="meta") + 1).sum()
        one = torch.zeros(1)
    assert watcher.names == ["aten.zeros.default"]
    assert one.item() == 0


def test_marks_of_profilers_are_not_ops() -> None:
    def program() -> None:
        with torch.profiler.record_function("forward"):
            torch.zeros(1)

    assert names(program) == ["aten.zeros.default"]


def test_an_op_that_raises_has_ended() -> None:
    stream, watcher = watch()
    a, b = torch.zeros(2, 2), torch.zeros(3, 3)
    with stream:
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(a, b)
        torch.mm(a, a)
    assert [seen.index for seen in watcher.seen] == [0, 1]
    assert watcher.seen[0].blocks == [*watcher.seen[1].blocks[:1], 1]
    assert watcher.seen[0].first_new == 2


def test_nothing_is_seen_before_and_after() -> None:
    stream, watcher = watch()
    torch.zeros(1)
    with stream:
        pass
    torch.zeros(1)
    assert watcher.seen == []


def test_a_storage_argument_counts_like_a_tensor() -> None:
    source = torch.ones(4)
    [_, seen] = ops_of(lambda: torch.empty(0).set_(source.untyped_storage()))
    assert seen.name == "aten.set_.source_Storage"
    assert seen.nbytes == [0, 16]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_seen_as_their_parts() -> None:
    coo, csr = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()
    [seen] = ops_of(lambda: coo * 2)
    assert seen.nbytes[:2] == [48, 12]
    assert seen.access == [1, 1, 2, 2]
    assert ops_of(lambda: csr @ torch.ones(3, 1))[-1].nbytes[:3] == [32, 48, 12]


def test_a_view_of_a_dense_tensor_copies_parts_of_a_sparse_one() -> None:
    coo = torch.eye(3).to_sparse()
    [dense, sparse] = ops_of(lambda: (torch.eye(3).t(), coo.t()))[-2:]
    assert (dense.name, dense.is_view) == ("aten.t.default", True)
    assert (sparse.name, sparse.is_view) == ("aten.t.default", False)
    assert sparse.access == [1, 1, 2, 2]
    with everything_away():
        found = [(coo * 1).t().to_dense() for _ in range(2)]
    assert all(torch.equal(one, torch.eye(3)) for one in found)


def test_a_sparse_tensor_is_told_of_at_a_quiet_position() -> None:
    stream, watcher = watch()
    stream.remembers = True
    coo = torch.eye(3).to_sparse()
    with stream:
        for _ in range(2):
            coo.t()
            stream.end_step()
            watcher.quiet = frozenset({0})
    assert watcher.names == ["aten.t.default"] * 2


def test_sparse_gradients_train_the_same() -> None:
    def train() -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(20, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 5, 5, 7])).square().sum().backward()
            optimizer.step()
        return table.weight.detach()

    plain = train()
    with everything_away():
        away = train()
        assert torch.equal(plain, away)


# Listeners


class Meddler(Watcher):
    """A listener whose own work runs ops."""

    def before_op(self, op: Op[Block]) -> None:
        torch.zeros(1) + 1
        super().before_op(op)

    def touch(self, block: Block, hold: Hold) -> None:
        torch.zeros(1) + 1
        super().touch(block, hold)


def test_what_a_collective_is_given_stays() -> None:
    import torch.distributed as dist

    stream, watcher = watch()
    with TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            with stream:
                tensor = torch.ones(5)
                work = dist.all_reduce(tensor, async_op=True)
                work.wait()
        finally:
            dist.destroy_process_group()
    assert watcher.begun == ["aten.ones.default", "c10d.allreduce_.default"]
    assert watcher.touched == [(0, Hold.LIFE)]


def test_ops_of_listeners_are_not_seen() -> None:
    meddler = Meddler()
    stream = OpStream(StorageTable(Block), [meddler])
    with stream:
        tensor = torch.ones(2)
        stream.touch(tensor.untyped_storage(), Hold.NOT)
        stream.touch_tensor(tensor, Hold.STEP)
    assert meddler.names == ["aten.ones.default"]
    assert [hold for _, hold in meddler.touched] == [Hold.NOT, Hold.STEP]


def test_a_touch_that_fails_leaves_the_stream_listening() -> None:
    class Fails(Watcher):
        def touch(self, block: Block, hold: Hold) -> None:
            raise OSError

    fails = Fails()
    stream = OpStream(StorageTable(Block), [fails])
    with stream:
        tensor = torch.ones(2)
        for _ in range(2):
            with pytest.raises(OSError):
                stream.touch(tensor.untyped_storage(), Hold.NOT)
        tensor + 1
    assert fails.names == ["aten.ones.default", "aten.add.Tensor"]


def test_with_nobody_to_tell_it_looks_at_nothing() -> None:
    stream: OpStream[Block] = OpStream(StorageTable(Block), [])
    with stream:
        torch.ones(2) + 1
        stream.end_step()
    assert not list(stream.table)
    assert (stream.step, stream.index) == (0, 0)


def test_a_forked_process_goes_its_own_way() -> None:
    stream, watcher = watch()
    with stream:
        tensor = torch.ones(2)
        child = os.fork()
        if child == 0:
            torch.add(tensor, 1)
            stream.touch(tensor.untyped_storage(), Hold.NOT)
            stream.end_step()
            told = len(watcher.seen) + len(watcher.touched) + len(watcher.steps)
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_other_modes_work_above_and_below() -> None:
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ops.aten.ones.default else result

    stream, watcher = watch()
    with stream, Doubling():
        assert torch.ones(1).item() == 2
    assert watcher.names[:2] == ["aten.ones.default", "aten.mul.Tensor"]
    with Doubling(), stream:
        assert torch.ones(1).item() == 2


def test_threads_wait_for_their_turn() -> None:
    stream, watcher = watch()
    tensors = [torch.ones(8) for _ in range(4)]
    with stream:
        for tensor in tensors:
            tensor + 0

        def touch(tensor: torch.Tensor) -> None:
            for _ in range(200):
                stream.touch(tensor.untyped_storage(), Hold.NOT)

        threads = [threading.Thread(target=touch, args=(tensor,)) for tensor in tensors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(block for block, _ in watcher.touched) == sorted([0, 2, 4, 6] * 200)


# Tensor subclasses


class Plain(torch.Tensor):
    """Adds nothing."""


def test_a_plain_subclass_stays_one() -> None:
    tensor = torch.ones(3).as_subclass(Plain)
    stream, watcher = watch()
    with stream:
        assert type(tensor + 1) is Plain
    assert watcher.names == ["aten.add.Tensor"]


def test_a_wrapper_is_seen_by_what_is_in_it() -> None:
    wrapper = TwoTensor(torch.ones(3), torch.ones(3) * 2)
    stream, watcher = watch()
    with stream:
        result = wrapper * 3
    assert watcher.names == ["aten.mul.Tensor", "aten.mul.Tensor"]
    assert type(result) is TwoTensor
    assert (result.a.tolist(), result.b.tolist()) == ([3.0] * 3, [6.0] * 3)


def test_a_wrapper_may_be_away() -> None:
    with everything_away() as away:
        wrapper = TwoTensor(torch.ones(3) * 1, torch.ones(3) * 2)
        torch.zeros(1) + 1
        assert away.is_away(wrapper.b)
        assert (wrapper * 3).b.tolist() == [6.0] * 3


def test_nested_tensors_work() -> None:
    def program() -> list[float]:
        nested = torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged
        )
        result: list[float] = (nested * 2 + 1).values().sum(0).tolist()
        return result

    with everything_away():
        assert program() == [18.0] * 3


def test_fake_tensors_work() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    stream, _ = watch()
    with stream, FakeTensorMode():
        fake = torch.zeros(3, 4) @ torch.zeros(4, 5)
        assert fake.shape == (3, 5)
    with stream:
        assert (fake + 1).shape == (3, 5)


# Compiled code


class Twice(HigherOrderOperator):
    """An operator without a schema, as compiled regions are."""

    def __init__(self) -> None:
        super().__init__("teraio_test_twice")

    def __call__(self, inputs: list[torch.Tensor]) -> Any:
        return super().__call__(inputs)


twice = Twice()
twice.py_impl(DispatchKey.CompositeExplicitAutograd)(lambda inputs: [x * 2 for x in inputs])
twice.fallthrough(DispatchKey.AutogradCPU)


def test_a_higher_order_op_is_one_op_that_may_write_its_inputs() -> None:
    a, b = torch.ones(3), torch.ones(3)
    [seen] = ops_of(lambda: twice([a, b]))
    assert seen.name == "teraio_test_twice"
    assert seen.access == [3, 3, 2, 2]
    with everything_away() as away:
        held = a * 5
        torch.zeros(1) + 1
        assert away.is_away(held)
        assert twice([held, b])[0].tolist() == [10.0] * 3


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_finds_its_tensors() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sin() * y).sum()

    x = torch.arange(8.0, requires_grad=True)
    y = torch.arange(8.0)
    original = torch.compile
    with everything_away() as away:
        compiled = torch.compile(function)
        kept = y * 1
        for _ in range(2):
            x.grad = None
            torch.zeros(1) + 1
            assert away.is_away(kept)
            compiled(x, kept).backward()
        gradient = x.grad
        assert gradient is not None
        assert away.names.count("inductor_compiled_code") == 4
        assert torch.allclose(gradient, x.detach().cos() * y)
    assert torch.compile is original


def test_compiled_regions_show_themselves_only_inside() -> None:
    import torch._inductor.config as inductor

    original = torch.compile
    with compiled_regions():
        torch.compile(lambda x: x)
        assert inductor.wrap_inductor_compiled_regions
    assert torch.compile is original


# The shorter way of ops that were there in the step before


class Quiet(Watcher):
    """A listener that does without views at some positions."""

    def __init__(self, quiet: set[int]) -> None:
        super().__init__()
        self.quiet = frozenset(quiet)


def views_told(
    stream: OpStream[Block], watcher: Watcher, functions: list[Callable[[], Any]]
) -> Any:
    told = []
    with stream:
        for function in functions:
            watcher.seen.clear()
            function()
            told.append([(seen.index, seen.name.split(".")[1]) for seen in watcher.seen])
            stream.end_step()
    return told


def test_a_view_at_a_quiet_position_is_counted_but_not_told() -> None:
    x = torch.ones(2, 3)
    watcher = Quiet({1, 2})
    stream = OpStream(StorageTable(Block), [watcher])
    stream.remembers = True

    def program() -> None:
        x.t() + x.view(3, 2) * 2

    told = views_told(stream, watcher, [program, program])
    assert told == [
        [(0, "t"), (1, "view"), (2, "mul"), (3, "add")],
        [(0, "t"), (2, "mul"), (3, "add")],
    ]


def test_another_view_than_before_is_told() -> None:
    x = torch.ones(2, 3)
    watcher = Quiet({0})
    stream = OpStream(StorageTable(Block), [watcher])
    stream.remembers = True
    told = views_told(stream, watcher, [lambda: x.t(), lambda: x.view(6), lambda: x.view(6)])
    assert told == [[(0, "t")], [(0, "view")], []]


def test_a_view_of_what_has_no_size_is_told() -> None:
    x = torch.ones(2, 3)
    watcher = Quiet({0})
    stream = OpStream(StorageTable(Block), [watcher])
    stream.remembers = True
    stream.sizeless = {x.untyped_storage()._cdata}
    told = views_told(stream, watcher, [lambda: x.t(), lambda: x.t()])
    assert told == [[(0, "t")], [(0, "t")]]


def test_a_signature_is_kept_only_for_the_same_operator_and_as_many_bytes() -> None:
    def signatures(*, remembers: bool) -> list[list[int]]:
        stream, watcher = watch()
        stream.remembers = remembers
        found = []
        with stream:
            for shape in ((2, 3), (2, 3), (4, 3)):
                watcher.seen.clear()
                torch.ones(shape).mul(2).add(1)
                found.append([seen.signature for seen in watcher.seen])
                stream.end_step()
        return found

    assert signatures(remembers=True) == signatures(remembers=False)
    first, second, third = signatures(remembers=True)
    assert first == second
    assert all(one != other for one, other in zip(first, third, strict=True))


def test_an_op_that_found_no_memory_is_called_again_if_that_may_help() -> None:
    stream, _ = watch()
    rooms = [True, False]
    stream.make_room = lambda _: rooms.pop(0)
    failures = [torch.OutOfMemoryError(), torch.OutOfMemoryError()]

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*args: Any, **kwargs: Any) -> Any:
            if failures:
                raise failures.pop()
            return function(*args, **kwargs)

        return failing

    original = stream._run_numbered
    stream._run_numbered = lambda operator, func, args, kwargs: original(  # type: ignore[method-assign]
        operator, call(func), args, kwargs
    )
    x = torch.ones(3)
    with stream, pytest.raises(torch.OutOfMemoryError):
        x * 2  # two failures, one room
    assert (rooms, failures) == ([], [])
    with stream:
        failures.append(torch.OutOfMemoryError())
        rooms.append(True)
        assert (x * 2).tolist() == [2, 2, 2]
        failures.append(torch.OutOfMemoryError())
        with pytest.raises(torch.OutOfMemoryError):
            x.mul_(2)  # it may have written a part
    assert x.tolist() == [1, 1, 1]
