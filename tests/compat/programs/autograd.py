"""What people ask of autograd beyond one backward a step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)
from variants import Kept, main, net

mse = nn.functional.mse_loss


def train(
    loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor], model: nn.Module | None = None
) -> Kept:
    """Train with a loss on which `backward` is called as usual."""
    model = model or net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(128, 256)
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


class Clipped(torch.autograd.Function):
    """Saves tensors both ways: declared, and as a mere attribute."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.mask = inputs.abs() < 1
        return (inputs * weight).clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, weight = ctx.saved_tensors
        return slope * weight * ctx.mask, (slope * inputs * ctx.mask).sum(0)


class Doubled(torch.autograd.Function):
    """Changes its input in place and says so; once differentiable only."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(inputs)
        return inputs.mul_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        return slope * 2


def functions(_: Path) -> Kept:
    """Functions of one's own: saved tensors, attributes of `ctx`, one that works in place."""
    model = net()
    scale = nn.Parameter(torch.ones(256))
    model.register_parameter("scale", scale)

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        hidden = Clipped.apply(model(inputs), scale)
        return mse(Doubled.apply(hidden * 1), inputs)

    return train(loss_of, model)


def retained(_: Path) -> Kept:
    """Two backwards through one graph, and a third through a part of it."""
    model, grads = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(5):
        inputs = torch.randn(128, 256)
        optimizer.zero_grad()
        hidden = model[:4](inputs)
        hidden.retain_grad()
        loss = mse(model[4:](hidden), inputs)
        loss.backward(retain_graph=True)
        hidden.mean().backward(retain_graph=True)
        loss.backward(inputs=[hidden, *model[:4].parameters()])
        optimizer.step()
        grads.append(hidden.grad)
    return {"grads": grads, "model": model}


def penalised(_: Path) -> Kept:
    """A gradient penalty: backward through a backward."""

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs.requires_grad_()
        out = model(inputs)
        (slope,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        return mse(out, inputs.detach()) + slope.norm(2, 1).sub(1).square().mean()

    return train(loss_of)


def meta_learned(_: Path) -> Kept:
    """MAML: an inner step of `autograd.grad`, the outer loss through `functional_call`."""

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        weights = dict(model.named_parameters())
        inner = mse(functional_call(model, weights, (inputs,)), inputs)
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        moved = {n: p - 0.1 * s for (n, p), s in zip(weights.items(), slopes, strict=True)}
        return mse(functional_call(model, moved, (inputs,)), inputs.roll(1, 0))

    return train(loss_of)


def each_sample(_: Path) -> Kept:
    """Gradients of each sample with `vmap` over `grad`, averaged by hand."""
    model, losses = net(depth=3), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(weights: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return mse(functional_call(model, weights, (sample[None],)), sample[None])

    for _step in range(5):
        inputs = torch.randn(4, 256)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        slopes = vmap(grad(loss_of), in_dims=(None, 0))(weights, inputs)
        for name, parameter in model.named_parameters():
            norms = slopes[name].flatten(1).norm(dim=1)
            parameter.grad = (slopes[name].mT.mT / norms.view(-1, *[1] * parameter.dim())).mean(0)
            losses.append(norms.sum().item())
        optimizer.step()
    return {"losses": losses, "model": model}


def ensemble(_: Path) -> Kept:
    """Three models in one, their weights stacked, under `vmap`."""
    models = [net(depth=2) for _ in range(3)]
    weights, buffers = stack_module_state(models)
    optimizer = torch.optim.Adam(weights.values(), lr=1e-3)
    losses = []

    def one(weights: Any, buffers: Any, inputs: torch.Tensor) -> torch.Tensor:
        return functional_call(models[0], (weights, buffers), (inputs,))

    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        out = vmap(one, in_dims=(0, 0, None))(weights, buffers, inputs)
        loss = mse(out, inputs.expand(3, -1, -1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "weights": weights, "optimizer": optimizer}


def forward_mode(_: Path) -> Kept:
    """Directional derivatives in forward mode, a Jacobian and a Hessian, beside the training."""
    seen = []

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        _, along = jvp(model, (inputs[:8],), (torch.ones_like(inputs[:8]),))
        seen.append(along.detach().clone())
        weight = model[0].weight.detach()
        seen.append(jacrev(lambda row: torch.tanh(weight @ row))(inputs[0]).sum(0))
        seen.append(hessian(lambda row: (weight[:16] @ row).square().sum())(inputs[1]).sum(0))
        return mse(model(inputs), inputs) + along.square().mean()

    return train(loss_of) | {"seen": seen}


class Block(nn.Module):
    """What is checkpointed; takes a tensor or a list of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(net(depth=2), nn.Dropout(0.1))

    def forward(self, hidden: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
        hidden = sum(hidden) if isinstance(hidden, list) else hidden
        return hidden + self.layers(hidden)


def checkpointed(_: Path, how: str) -> Kept:
    """`torch.utils.checkpoint` in each of its kinds; the block has dropout."""
    blocks = nn.ModuleList(Block() for _ in range(3))

    def policy(_ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        save = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    def run(block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        if how == "reentrant":
            return checkpoint(block, hidden, use_reentrant=True)
        if how == "list":
            return checkpoint(block, [hidden, hidden.detach()], use_reentrant=False)
        if how == "selective":
            context = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
            return checkpoint(block, hidden, use_reentrant=False, context_fn=context)
        if how == "careless":
            return checkpoint(
                block, hidden, use_reentrant=False,
                preserve_rng_state=False, determinism_check="none",
            )  # fmt: skip
        return checkpoint(block, hidden, use_reentrant=False)

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.requires_grad_() * 1
        if how == "sequential":
            hidden = checkpoint_sequential(nn.Sequential(*blocks), 2, hidden, use_reentrant=False)
        else:
            for block in blocks:
                hidden = run(block, hidden)
        return mse(hidden, inputs.detach())

    return train(loss_of, blocks)


def hooked(_: Path) -> Kept:
    """Hooks on modules, tensors and gradients that read, replace and keep tensors."""
    model, kept = net(), {}
    model[0].register_forward_hook(lambda _m, _i, out: kept.__setitem__("out", out) or out * 2)
    model[2].register_forward_pre_hook(lambda _m, inputs: (inputs[0] + 1,))
    model[4].register_full_backward_hook(lambda _m, _i, out: kept.__setitem__("slope", out[0]))
    model[4].weight.register_hook(lambda slope: slope * 0.5)
    model[6].weight.register_post_accumulate_grad_hook(lambda p: kept.update(last=p.grad.mul_(2)))

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        out = model(inputs)
        out.register_hook(lambda slope: slope.clamp(-1e-3, 1e-3))
        torch.autograd.graph.register_multi_grad_hook(
            list(model.parameters()), lambda slopes: kept.__setitem__("n", len(slopes))
        )
        return mse(out, inputs) + kept["out"].mean()

    return train(loss_of, model) | {"kept": kept}


def saved_elsewhere(_: Path, how: str) -> Kept:
    """Saved-tensor hooks of the script's own: copies, `save_on_cpu`, files, or nothing done."""
    files: list[Path] = []

    def pack(tensor: torch.Tensor) -> Any:
        files.append(_ / f"saved{len(files)}.pt")
        torch.save(tensor, files[-1])
        return files[-1]

    def hooks() -> Any:
        saved = torch.autograd.graph.saved_tensors_hooks
        if how == "save_on_cpu":
            return torch.autograd.graph.save_on_cpu()
        if how == "file":
            return saved(pack, torch.load)
        if how == "copy":
            return saved(lambda t: t.detach().clone(), lambda t: t)
        return saved(lambda t: t, lambda t: t)

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        with hooks():
            return mse(model(inputs), inputs)

    return train(loss_of)


def read_twice(_: Path) -> Kept:
    """Tensors that autograd saved, read from the graph's nodes before backward."""
    seen = []

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        hidden = model(inputs).exp()
        seen.append(hidden.grad_fn._saved_result.detach().sum().item())
        seen.append(hidden.grad_fn._saved_result.detach().mean().item())
        return mse(hidden, inputs)

    return train(loss_of) | {"seen": seen}


def anomalies(_: Path) -> Kept:
    """Anomaly detection, which finds a NaN in backward; the step is given up."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, errors = [], []
    for step in range(6):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        with torch.autograd.set_detect_anomaly(True):
            out = model(inputs)
            if step == 3:
                out = (out - out).sqrt()
            loss = mse(out, inputs)
            try:
                loss.backward()
            except RuntimeError as error:
                errors.append(str(error))
                continue
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "errors": errors, "model": model}


def noisy(_: Path) -> Kept:
    """Random functions whose noise is saved: rrelu, dropout of whole features, gumbel softmax."""

    def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.rrelu(model[:4](inputs), training=True)
        hidden = nn.functional.feature_alpha_dropout(hidden, 0.1, training=True)
        hidden = nn.functional.gumbel_softmax(hidden, dim=1) * 16
        return mse(nn.functional.rrelu(model[4:](hidden), training=True, inplace=True), inputs)

    return train(loss_of)


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message="Anomaly Detection")
    main(functions, retained, penalised, meta_learned, each_sample, ensemble, forward_mode,
         checkpointed, hooked, saved_elsewhere, read_twice, anomalies, noisy)  # fmt: skip
