"""Tensors that share memory, change in place or are laid out unusually, in mid-training."""

from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

mse = nn.functional.mse_loss


class Around(nn.Module):
    """A model with something done to its hidden tensor, of 256 KiB, on the way."""

    def __init__(self, between: object) -> None:
        super().__init__()
        self.first, self.last, self.between = net(depth=2), net(depth=2), between

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.first(inputs)))


def train(between: object, **more: object) -> Kept:
    model = Around(between)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(256, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer, **more}


def views(_: Path) -> Kept:
    """Narrowed, split, unbound, permuted, reshaped, unfolded and selected."""

    def between(hidden: torch.Tensor) -> torch.Tensor:
        left, right = hidden.split(128, 1)
        rows = torch.stack(hidden.unbind(0)[:8]).mean(0)
        square = hidden.view(16, 16, 256).permute(1, 0, 2).reshape(256, 256)
        narrow = hidden.narrow(1, 10, 80)[:, ::2].sum(1, keepdim=True)
        windows = hidden.unfold(1, 4, 4).mean(-1).repeat_interleave(4, 1)
        return torch.cat([right, left], 1) * rows + square + narrow + windows + hidden.movedim(0, 1)

    return train(between)


def transposes(_: Path) -> Kept:
    """A tensor and its transpose, both saved for backward: one storage."""
    return train(lambda hidden: (hidden * hidden.t()) @ hidden.t() / 16 + hidden.mT.exp())


def expanded(_: Path) -> Kept:
    """A row that is expanded, with stride 0: its storage has the bytes of one row."""
    strides = []

    def between(hidden: torch.Tensor) -> torch.Tensor:
        row = hidden.mean(0)
        wide = row.expand(4, 256, 256)
        strides.append(wide.stride())
        return hidden * wide.sum(0) + wide.exp().mean((0, 1))

    return train(between, strides=strides)


def strided(_: Path) -> Kept:
    """`as_strided` windows that overlap, and writes through one."""

    def between(hidden: torch.Tensor) -> torch.Tensor:
        windows = hidden.as_strided((255, 512), (256, 1))
        with torch.no_grad():
            buffer = torch.zeros(256 * 256 + 256)
            buffer.as_strided((256, 256), (256, 1), 256).copy_(hidden)
        return hidden + windows.mean() + buffer[256:].view(256, 256)

    return train(between)


def detached(_: Path) -> Kept:
    """`.data`, `detach` and `no_grad` results that live on into the next steps."""
    past = []

    def between(hidden: torch.Tensor) -> torch.Tensor:
        past.append(hidden.detach())
        past.append(hidden.data[:, :16])
        with torch.no_grad():
            centre = hidden.mean(0, keepdim=True)
        return hidden - centre + sum(old.mean() for old in past)

    return train(between, past=past)


def in_place(_: Path) -> Kept:
    """ReLU, dropout, masks and additions in place, and a slice that is assigned."""

    def between(hidden: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu_(hidden.mul(2))
        hidden = nn.functional.dropout(hidden * 1, 0.2, inplace=True)
        hidden = hidden.add_(1).masked_fill_(hidden > 3, 0.5)
        other = hidden.clone()
        other[10:20, ::2] = 0.25
        other.index_add_(0, torch.arange(8), hidden[:8])
        other.t_()
        return other.contiguous().sigmoid_()

    return train(between)


def out_given(_: Path) -> Kept:
    """Results written into a given tensor with `out=`, one that grows and one that is reused."""
    given, grows = torch.empty(256, 256), torch.empty(0)

    def between(hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            torch.mul(hidden, 2, out=given)
            torch.cat([hidden, hidden], out=grows)
            torch.sort(hidden.flatten(), out=(torch.empty(0), torch.empty(0, dtype=torch.int64)))
            grows.resize_(0)
        return hidden + given

    return train(between, given=given)


def resized(_: Path) -> Kept:
    """`resize_`, `set_` and storages that are resized and swapped under a tensor."""
    window, ring = torch.zeros(256, 256), torch.zeros(8, 65536)

    def between(hidden: torch.Tensor) -> torch.Tensor:
        slot = int(ring[0, 0].item()) % 8
        with torch.no_grad():
            window.set_(ring.untyped_storage(), slot * 65536, (256, 256), (256, 1))
            window.copy_(hidden)
            extra = torch.ones(16)
            extra.resize_(256, 256).fill_(0.5)
            bare = torch.empty(256, 256)
            bare.untyped_storage().resize_(0)
            bare.untyped_storage().resize_(256 * 256 * 4)
            bare.fill_(0.25)
        return hidden + window * extra + bare

    return train(between, ring=ring)


def data_replaced(_: Path) -> Kept:
    """Weights that are given new memory each step: `.data =`, `swap_tensors`, weight norm."""
    model = net(depth=3)
    model[0] = nn.utils.parametrizations.weight_norm(model[0])
    model[2] = nn.utils.parametrizations.spectral_norm(model[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        last = model[4].weight
        last.data = last.data / last.data.norm().clamp(min=1)
        if step == 3:
            model[4].bias = nn.Parameter(torch.zeros(256))
            torch.utils.swap_tensors(model[0].bias, nn.Parameter(torch.ones(256)))
        losses.append(loss.item())
    return {"losses": losses, "model": model}


def kept_views(_: Path) -> Kept:
    """Views of the weights made before training, read in every step."""
    model = net()
    weights = [module.weight for module in model if isinstance(module, nn.Linear)]
    rows = [weight.detach()[3] for weight in weights]
    turned = [weight.data.t() for weight in weights]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses += [loss.item(), *(row.sum().item() for row in rows)]
        losses += [part.trace().item() for part in turned]
    return {"losses": losses, "rows": rows, "model": model}


def tied(_: Path) -> Kept:
    """An embedding that is the head too, and one layer applied three times."""
    embedding, body = nn.Embedding(1000, 128), nn.Linear(128, 128)
    head = nn.Linear(128, 1000, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleList([embedding, body, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        tokens = torch.randint(0, 1000, (8, 17))
        optimizer.zero_grad()
        hidden = embedding(tokens[:, :-1])
        for _layer in range(3):
            hidden = hidden + torch.tanh(body(hidden))
        scores = head(hidden).flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def flat(_: Path) -> Kept:
    """All weights as views of one flat tensor, and all gradients too."""
    model = net()
    named = list(model.named_parameters())
    whole = torch.cat([p.detach().flatten() for _, p in named])
    slopes = torch.zeros_like(whole)
    start = 0
    for _, parameter in named:
        end = start + parameter.numel()
        parameter.data = whole[start:end].view_as(parameter)
        parameter.grad = slopes[start:end].view_as(parameter)
        start = end
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        slopes.zero_()
        loss = mse(model(inputs), inputs)
        loss.backward()
        slopes.clamp_(-0.01, 0.01)
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "whole": whole, "slopes": slopes, "optimizer": optimizer}


def reused_addresses(_: Path) -> Kept:
    """Six layers and three inputs whose tensors get the addresses of those before."""
    layers = [nn.Linear(256, 256) for _ in range(6)]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.0)
    inputs = torch.randn(64, 256)
    gradients = []
    for scale in (1, 2, 3, 4, 5):
        optimizer.zero_grad()
        hidden = inputs * scale
        for layer in layers:
            hidden = torch.tanh(layer(hidden))
        hidden.sum().backward()
        optimizer.step()
        gradients.append([layer.weight.grad.clone() for layer in layers])
    return {"gradients": gradients}


def changed_after_saving(_: Path) -> Kept:
    """A tensor changed after autograd saved it: the same error as ever, caught."""
    errors = []

    def between(hidden: torch.Tensor) -> torch.Tensor:
        saved = hidden.detach().requires_grad_() * 1
        product = saved * saved
        with torch.no_grad():
            saved.mul_(10)
        try:
            product.sum().backward()
        except RuntimeError as error:
            errors.append(str(error))
        return hidden

    return train(between, errors=errors)


if __name__ == "__main__":
    main(views, transposes, expanded, strided, detached, in_place, out_given, resized,
         data_replaced, kept_views, tied, flat, reused_addresses, changed_after_saving)  # fmt: skip
