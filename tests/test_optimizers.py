"""Optimizer steps in groups give the same numbers, and steps end where they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.optim import Optimizer  # noqa: E402

from teraio.profiler.optimizers import ABANDONED, OptimizerWatch  # noqa: E402

Make = Callable[[Any], Optimizer]
BIG = 600  # rows of 600 floats: 1.44 MB, so that every parameter is a group of its own

MAKERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=2),
}


def ignore(_: Optimizer) -> None:
    """Do nothing with an optimizer."""


def parameters() -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(BIG, BIG)) for _ in range(3)]


def train(make: Make, steps: int = 3) -> tuple[list[Any], Optimizer, list[float]]:
    params = parameters()
    half = {"params": params[2:], "weight_decay": 0.01}
    optimizer = make(params if make is MAKERS["LBFGS"] else [{"params": params[:2]}, half])
    losses = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum((p * (i + 1)).square().mean() for i, p in enumerate(params))
        loss.backward()
        losses.append(loss.item())
        return loss

    returned = [optimizer.step(closure).item() for _ in range(steps)]
    return params, optimizer, returned + losses


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_to_the_bit(name: str) -> None:
    plain, its_optimizer, its_losses = train(MAKERS[name])
    with OptimizerWatch(ignore, ignore).installed():
        watched, optimizer, losses = train(MAKERS[name])
    assert losses == its_losses
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert len(optimizer.param_groups) == len(its_optimizer.param_groups)
    for one, other in zip(plain, watched, strict=True):
        mine, theirs = optimizer.state[other], its_optimizer.state[one]
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert torch.equal(value, mine[key]) if isinstance(value, torch.Tensor) else True


def test_a_step_is_taken_over_groups_of_parameters() -> None:
    seen: list[int] = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if getattr(func, "__name__", "") == "_foreach_add_" and len(args) > 1:
                seen.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    with OptimizerWatch(ignore, ignore).installed(), Spy():
        train(MAKERS["AdamW foreach"], steps=1)
    assert set(seen) == {1}


def test_the_step_ends_with_the_first_optimizer() -> None:
    ended: list[Optimizer] = []
    begun: list[Optimizer] = []
    with OptimizerWatch(begun.append, ended.append).installed():
        (one,), (two,) = parameters()[:1], parameters()[:1]
        critic, generator = torch.optim.SGD([one], lr=0.1), torch.optim.Adam([two])
        for parameter in (one, two):
            parameter.grad = torch.ones_like(parameter)
        for _ in range(2):
            critic.step()
            generator.step()
            generator.step()
        assert ended == [critic] * 2
        assert begun == [critic, generator, generator] * 2
        for _ in range(ABANDONED - 2):
            generator.step()
        assert ended[2:] == [generator]
        generator.step()
        assert ended[2:] == [generator] * 2


def test_an_optimizer_that_is_gone_ends_no_more_steps() -> None:
    ended: list[str] = []
    with OptimizerWatch(ignore, lambda o: ended.append(type(o).__name__)).installed():
        (one,) = parameters()[:1]
        one.grad = torch.ones_like(one)
        first = torch.optim.SGD([one], lr=0.1)
        first.step()
        del first
        torch.optim.Adam([one]).step()
    assert ended == ["SGD", "Adam"]


def test_hooks_run_once_and_around_the_whole_step() -> None:
    order: list[str] = []
    params = parameters()
    for parameter in params:
        parameter.grad = torch.ones_like(parameter)
    with OptimizerWatch(ignore, lambda _: order.append("end")).installed():
        optimizer = torch.optim.Adam(params)
        optimizer.register_step_pre_hook(lambda *_: order.append("pre"))
        optimizer.register_step_post_hook(lambda *_: order.append("post"))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        optimizer.step()
        scheduler.step()
    assert order == ["pre", "post", "end"]


def test_a_subclass_that_calls_its_parent() -> None:
    ended: list[Optimizer] = []

    class Mine(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return "mine"

    params = parameters()
    for parameter in params:
        parameter.grad = torch.ones_like(parameter)
    with OptimizerWatch(ignore, ended.append).installed():
        optimizer = Mine(params)
        assert optimizer.step() == "mine"
    assert ended == [optimizer]
    assert all(float(optimizer.state[p]["step"]) == 1 for p in params)


def test_groups_are_whole_again_after_an_error() -> None:
    params = parameters()
    with OptimizerWatch(ignore, ignore).installed():
        optimizer = torch.optim.SGD(params, lr=0.1)
        for parameter in params:
            parameter.grad = torch.ones_like(parameter)
        optimizer.param_groups[0]["lr"] = None
        with pytest.raises(TypeError):
            optimizer.step()
    assert optimizer.param_groups[0]["params"] == params


def test_everything_is_put_back() -> None:
    hook = Optimizer.profile_hook_step
    torch.optim.SGD(parameters(), lr=0.1)
    before = torch.optim.SGD.step
    with OptimizerWatch(ignore, ignore).installed():
        assert torch.optim.SGD.step is not before
        torch.optim.Rprop(parameters())
    assert Optimizer.profile_hook_step is hook
    ended: list[Optimizer] = []
    with OptimizerWatch(ignore, ended.append).installed():
        pass
    params = parameters()
    for parameter in params:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(params, lr=0.1).step()
    torch.optim.Rprop(params).step()
    assert ended == []
    assert getattr(torch.optim.SGD.step, "hooked", False)
