"""Training loops as people write them: one optimizer or several, closures, schedules, averages."""

import copy
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from variants import Kept, main, net

mse = nn.functional.mse_loss


def accumulated(_: Path) -> Kept:
    """Four micro-batches a step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for micro in range(20):
        inputs = torch.randn(16, 256)
        loss = mse(model(inputs), inputs) / 4
        loss.backward()
        losses.append(loss.item())
        if micro % 4 == 3:
            optimizer.step()
            if micro < 19:
                optimizer.zero_grad()
    return {"losses": losses, "model": model, "optimizer": optimizer}


def accumulated_at_once(_: Path) -> Kept:
    """The same eight samples in four micro-batches and in one batch: equal but for rounding."""
    gradients = []
    for parts in (4, 1):
        torch.manual_seed(1)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _step in range(5):
            optimizer.zero_grad()
            inputs = torch.randn(8, 256)
            for part in inputs.chunk(parts):
                (mse(model(part), part) / parts).backward()
            optimizer.step()
        gradients.append([p.grad for p in model.parameters()])
    for micro, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(micro, whole, atol=1e-6, rtol=0)
    return {"gradients": gradients}


def zeroed(_: Path, set_to_none: str) -> Kept:
    """Gradients set to None or filled with zeros, and printed in between."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _step in range(5):
        inputs = torch.randn(32, 256)
        optimizer.zero_grad(set_to_none=set_to_none == "True")
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def clipped(_: Path, how: str) -> Kept:
    """Gradients clipped by norm, by value, one by one, or with the norm as a tensor."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        if how == "norm":
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01).item())
        elif how == "one":
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01, foreach=False).item())
        elif how == "value":
            nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        else:
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for parameter in model.parameters():
                parameter.grad.mul_(0.01 / (norm + 1e-6))
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def scaled(_: Path, fused: str) -> Kept:
    """A GradScaler whose step 3 overflows and is skipped."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused == "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    losses = []
    for step in range(6):
        inputs = torch.randn(32, 256)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse(model(inputs).float(), inputs)
        scaler.scale(loss).backward()
        if step == 3:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses += [loss.item(), scaler.get_scale()]
    return {"losses": losses, "model": model, "optimizer": optimizer, "scaler": scaler.state_dict()}


def unfrozen(_: Path) -> Kept:
    """Layers that are frozen at first, then thawed and given to the optimizer in mid-training."""
    model = net(depth=5)
    model[:4].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[4:].parameters(), lr=1e-3)
    losses = []
    for step in range(8):
        if step == 5:
            model[:4].requires_grad_(True)
            optimizer.add_param_group({"params": model[:4].parameters(), "lr": 1e-4})
        inputs = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def grown(_: Path) -> Kept:
    """A layer that is added in mid-training, with its parameters."""
    model = net(depth=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(8):
        if step == 5:
            added = nn.Linear(256, 256)
            model.extend([nn.GELU(), added])
            optimizer.add_param_group({"params": added.parameters()})
        inputs = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def adversaries(_: Path) -> Kept:
    """Three critic steps for each step of the generator, each with an optimizer of its own."""
    maker, critic = net(depth=3), nn.Sequential(net(depth=3), nn.Linear(256, 1))
    make_step = torch.optim.RMSprop(maker.parameters(), lr=1e-4)
    judge_step = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    losses = []
    for _round in range(6):
        for _turn in range(3):
            judge_step.zero_grad()
            real, made = torch.rand(32, 256), maker(torch.randn(32, 256)).detach()
            loss = critic(made).mean() - critic(real).mean()
            loss.backward()
            judge_step.step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            losses.append(loss.item())
        make_step.zero_grad()
        loss = -critic(maker(torch.randn(32, 256))).mean()
        loss.backward()
        make_step.step()
        losses.append(loss.item())
    return {"losses": losses, "models": [maker, critic], "steps": [make_step, judge_step]}


def averaged(_: Path, how: str) -> Kept:
    """A moving average of the weights: a deep copy, `AveragedModel`, or one in foreach ops."""
    model = nn.Sequential(net(depth=3), nn.BatchNorm1d(256))
    if how == "copy":
        average = copy.deepcopy(model).requires_grad_(False)
    else:
        function = get_ema_multi_avg_fn(0.9) if how == "multi" else None
        average = AveragedModel(model, multi_avg_fn=function, use_buffers=how == "multi")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    losses = []
    data = [torch.randn(32, 256) for _ in range(6)]
    for inputs in data:
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        schedule.step()
        if how == "copy":
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.mul_(0.9).add_(new, alpha=0.1)
        else:
            average.update_parameters(model)
        losses.append(loss.item())
    if how == "swa":
        update_bn(data, average)
    return {"losses": losses, "model": model, "average": average}


def in_backward(_: Path) -> Kept:
    """An optimizer per parameter, stepped in backward as soon as the gradient is there."""
    model = net()
    steps = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def step_now(parameter: nn.Parameter) -> None:
        steps[parameter].step()
        steps[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    losses = []
    for _step in range(6):
        inputs = torch.randn(32, 256)
        loss = mse(model(inputs), inputs)
        loss.backward()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "states": list(steps.values())}


def by_hand(_: Path) -> Kept:
    """No optimizer at all: parameters updated by hand."""
    model = net()
    losses = []
    for _step in range(5):
        inputs = torch.randn(32, 256)
        loss = mse(model(inputs), inputs)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        losses.append(loss.item())
    return {"losses": losses, "model": model}


class SignDescent(torch.optim.Optimizer):
    """An optimizer of one's own, whose update reads the mean over all parameters."""

    def __init__(self, parameters: object, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            known = [p for p in group["params"] if p.grad is not None]
            scale = torch.stack([p.grad.abs().mean() for p in known]).mean()
            for parameter in known:
                state = self.state[parameter]
                sign = state.setdefault("sign", torch.zeros_like(parameter))
                sign.lerp_(parameter.grad.sign(), 0.5)
                parameter.addcmul_(sign, scale, value=-group["lr"])


def own(_: Path) -> Kept:
    """An optimizer that the script itself defines."""
    model = net()
    optimizer = SignDescent(model.parameters(), lr=0.1)
    losses = []
    for _step in range(5):
        inputs = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def scheduled(_: Path) -> Kept:
    """OneCycleLR, which sets momentum too, a rate that is a tensor, and step hooks."""
    model = net()
    groups = [{"params": model[:4].parameters()}, {"params": model[4:].parameters(), "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(1e-3), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[1e-2, 1e-3], total_steps=6)
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(model[0].weight.norm().item()))
    optimizer.register_step_post_hook(lambda *_: norms.append(model[0].weight.norm().item()))
    losses = []
    for _step in range(6):
        inputs = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return {"losses": losses, "norms": norms, "model": model, "optimizer": optimizer}


def resumed(out: Path) -> Kept:
    """Model and optimizer loaded into new ones in mid-training, with the random state."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(8):
        if step == 4:
            states = [model.state_dict(), optimizer.state_dict(), torch.get_rng_state()]
            torch.save(states, out / "checkpoint.pt")
            del model, optimizer, states
            torch.manual_seed(7)
            model = net()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            weights, states, random = torch.load(out / "checkpoint.pt")
            model.load_state_dict(weights)
            optimizer.load_state_dict(states)
            torch.set_rng_state(random)
        inputs = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


if __name__ == "__main__":
    main(accumulated, accumulated_at_once, zeroed, clipped, scaled, unfrozen, grown, adversaries,
         averaged, in_backward, by_hand, own, scheduled, resumed)  # fmt: skip
