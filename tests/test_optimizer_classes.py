"""Every optimizer of torch, in every implementation, stepped in groups: the same to the bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

import teraio.profiler.partition
from teraio.profiler.optimizers import OptimizerWatch

NEEDS_LR = {"SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, "RMSprop": {"momentum": 0.5}}
CLASSES = sorted(
    (
        cls
        for cls in vars(torch.optim).values()
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer
    ),
    key=lambda cls: cls.__name__,
)
SHAPES = [(5, 3), (7,), (1,), (4, 4), (30, 2), (2, 2), (9,)]


@pytest.fixture(autouse=True)
def cut_finely(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(teraio.profiler.partition, "SMALLEST", 40)
    yield


def watched() -> Any:
    return OptimizerWatch(lambda _: None, lambda _: None).installed()


def is_muon(cls: type[Optimizer]) -> bool:
    return cls.__name__ == "Muon"


def parameters(cls: type[Optimizer]) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    shapes = [s for s in SHAPES if len(s) == 2] if is_muon(cls) else SHAPES
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def set_gradients(params: list[torch.nn.Parameter], step: int, *, sparse: bool = False) -> None:
    generator = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(params):
        gradient = torch.randn(parameter.shape, generator=generator)
        if number == 2 and step == 1:
            parameter.grad = None  # not every parameter has one in every step
        else:
            parameter.grad = gradient.to_sparse() if sparse else gradient


def train(cls: type[Optimizer], **options: Any) -> list[Any]:
    params = parameters(cls)
    groups = [{"params": params[:4]}, {"params": params[4:], "lr": 0.003}]
    if cls.__name__ == "LBFGS":
        groups = [{"params": params}]
    optimizer = cls(groups, **NEEDS_LR.get(cls.__name__, {}), **options)  # type: ignore[arg-type]
    for step in range(3):
        set_gradients(params, step, sparse=cls.__name__ == "SparseAdam")
        if cls.__name__ == "LBFGS":
            optimizer.step(lambda: torch.ones(()))
        else:
            optimizer.step()
    return [*params, *(optimizer.state[p] for p in params), _options(optimizer)]


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        return dense.dtype, dense.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


WAYS: list[dict[str, Any]] = [
    {},
    {"foreach": True},
    {"foreach": False},
    {"fused": True},
    {"maximize": True},
    {"weight_decay": 0.1},
    {"amsgrad": True},
    {"centered": True},
    {"nesterov": True, "dampening": 0.0},
    {"differentiable": False, "foreach": True, "maximize": True, "weight_decay": 0.1},
    {"decoupled_weight_decay": True},
    {"lr": torch.tensor(0.01)},
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_in_every_way_gives_the_same_bits(cls: type[Optimizer]) -> None:
    accepted = inspect.signature(cls).parameters
    tried = 0
    for options in WAYS:
        if not options.keys() <= accepted.keys():
            continue
        try:
            plain = train(cls, **options)
        except (RuntimeError, ValueError, TypeError):
            continue  # torch itself does not want these together
        with watched():
            in_groups = train(cls, **options)
        assert bits(in_groups) == bits(plain), options
        tried += 1
    assert tried


def test_all_classes_of_torch_are_here() -> None:
    names = {cls.__name__ for cls in CLASSES}
    assert {"SGD", "Adam", "AdamW", "Adafactor", "LBFGS", "SparseAdam", "NAdam"} <= names


def _rounds(cls: type[Optimizer], **options: Any) -> list[int]:
    """How many parameters there were in each call of the class's own step."""
    seen: list[int] = []
    own = inspect.unwrap(cls.step)

    class Spied(cls):  # type: ignore[valid-type, misc]
        """The class with a step that counts."""

    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        seen.append(sum(len(group["params"]) for group in self.param_groups))
        with torch.no_grad():
            return own(self, closure)

    step.__module__, step.__qualname__ = own.__module__, own.__qualname__
    Spied.step = step  # type: ignore[method-assign]
    with watched():
        params = parameters(cls)
        optimizer = Spied(params, **NEEDS_LR.get(cls.__name__, {}), **options)
        set_gradients(params, 0, sparse=cls.__name__ == "SparseAdam")
        optimizer.step(lambda: torch.ones(()))
    return seen


@pytest.mark.parametrize(
    "cls", [c for c in CLASSES if c.__name__ != "LBFGS"], ids=lambda cls: cls.__name__
)
def test_every_class_but_one_is_taken_in_groups(cls: type[Optimizer]) -> None:
    rounds = _rounds(cls)
    assert len(rounds) > 1
    assert sum(rounds) == len(parameters(cls))


def test_an_optimizer_that_couples_its_parameters_is_not_cut() -> None:
    assert _rounds(torch.optim.LBFGS) == [len(SHAPES)]


def test_steps_that_are_not_torchs_are_not_cut() -> None:
    seen: list[int] = []

    class Mine(Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            seen.append(len(self.param_groups[0]["params"]))

    with watched():
        Mine(parameters(torch.optim.SGD)).step()
    assert seen == [len(SHAPES)]


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    "Lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "OneCycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10),
    "Cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=True),
    "Cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "Sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        [2],
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules_of_the_learning_rate_work_as_ever(name: str) -> None:
    def scheduled() -> list[Any]:
        params = parameters(torch.optim.SGD)
        optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)
        rates = []
        for step in range(5):
            set_gradients(params, step)
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr())
        return [*params, rates, scheduler.state_dict().get("last_epoch")]

    plain = scheduled()
    with watched():
        assert bits(scheduled()) == bits(plain)


def test_a_plateau_is_seen() -> None:
    with watched():
        optimizer = torch.optim.SGD(parameters(torch.optim.SGD), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for loss in (1.0, 1.0, 1.0):
            optimizer.step()
            scheduler.step(loss)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("overflows", [False, True])
def test_gradient_scaling_skips_and_steps_as_ever(fused: bool, overflows: bool) -> None:
    def scaled() -> list[Any]:
        params = parameters(torch.optim.Adam)
        optimizer = torch.optim.Adam(params, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        scaler.scale(torch.ones(1))  # it makes its tensors when it first scales
        for step in range(3):
            set_gradients(params, step)
            if overflows and step == 1 and params[0].grad is not None:
                params[0].grad[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        return [*params, scaler.get_scale(), [optimizer.state[p] for p in params]]

    plain = scaled()
    with watched():
        assert bits(scaled()) == bits(plain)


def test_a_closure_runs_once_with_gradients_on() -> None:
    calls: list[bool] = []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        set_gradients(params, len(calls))
        return torch.tensor(2.5)

    with watched():
        params = parameters(torch.optim.Adam)
        optimizer = torch.optim.Adam(params)
        with torch.no_grad():
            assert optimizer.step(closure) == 2.5
            assert optimizer.step(closure=closure) == 2.5
    assert calls == [True, True]


def test_a_subclass_without_its_own_step_is_taken_in_groups() -> None:
    class Mine(torch.optim.AdamW):
        """Adds nothing."""

    def train_mine(cls: type[torch.optim.AdamW]) -> list[torch.nn.Parameter]:
        params = parameters(cls)
        optimizer = cls(params)
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        return params

    plain = train_mine(torch.optim.AdamW)
    with watched():
        assert bits(train_mine(Mine)) == bits(plain)


def test_the_state_saved_in_mid_run_is_that_of_a_plain_run() -> None:
    def saved() -> dict[str, Any]:
        params = parameters(torch.optim.AdamW)
        optimizer = torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:], "lr": 0.5}])
        for step in range(2):
            set_gradients(params, step)
            optimizer.step()
        other = torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:]}])
        other.load_state_dict(optimizer.state_dict())
        set_gradients(params, 5)
        other.step()
        return {"state": other.state_dict(), "params": params}

    plain = saved()
    with watched():
        assert bits(saved()) == bits(plain)


def test_an_optimizer_in_an_optimizer_is_one_step() -> None:
    ended: list[Optimizer] = []

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            return super().step(closure)

    with OptimizerWatch(lambda _: None, ended.append).installed():
        params = parameters(torch.optim.SGD)
        inner = torch.optim.SGD(params[:3], lr=0.1)
        outer = Outer(params[3:], lr=0.1)
        set_gradients(params, 0)
        outer.step()
    assert ended == [outer]


def test_a_step_that_fails_ends_no_step_and_the_next_one_does() -> None:
    ended: list[Optimizer] = []
    watch = OptimizerWatch(lambda _: None, ended.append)
    with watch.installed():
        params = parameters(torch.optim.SGD)
        optimizer = torch.optim.SGD(params, lr=0.1)
        set_gradients(params, 0)

        def fails() -> float:
            msg = "no data"
            raise ArithmeticError(msg)

        with pytest.raises(ArithmeticError):
            optimizer.step(fails)
        assert (ended, watch.stepping) == ([], False)
        optimizer.step()
    assert ended == [optimizer]


def test_in_one_piece_if_asked() -> None:
    seen: list[int] = []

    def count(group: Any, *_: Any) -> None:
        seen.append(len(group.param_groups[0]["params"]))

    with OptimizerWatch(lambda _: None, lambda _: None, in_groups=False).installed():
        params = parameters(torch.optim.SGD)
        optimizer = torch.optim.SGD(params, lr=0.1)
        optimizer.register_step_post_hook(count)
        set_gradients(params, 0)
        optimizer.step()
    assert seen == [len(SHAPES)]
