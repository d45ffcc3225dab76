"""Tensors of every dtype and odd shape that live through training."""

from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

mse = nn.functional.mse_loss


def train(model: nn.Module, width: int = 256, dtype: torch.dtype = torch.float32) -> Kept:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, width, dtype=dtype)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).abs().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def whole(_: Path, name: str) -> Kept:
    """A model that is of one dtype as a whole."""
    dtype = getattr(torch, name)
    return train(net().to(dtype), dtype=dtype)


class Spectral(nn.Module):
    """A convolution by Fourier transform, with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 129, dtype=torch.complex64) / 16)
        self.mix = nn.Linear(129, 129, dtype=torch.complex64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        waves = torch.fft.rfft(inputs)
        waves = self.mix(waves * self.weight[: len(inputs)]) + waves.conj() * 1j
        parts = torch.view_as_real(waves) * 0.5
        return torch.fft.irfft(torch.view_as_complex(parts).resolve_conj(), n=inputs.shape[1])


def complex_numbers(_: Path) -> Kept:
    """Complex weights, their conjugates, real and imaginary views, Fourier transforms."""
    return train(nn.Sequential(net(depth=2), Spectral()))


class Scaled(nn.Module):
    """Weights kept in float8 with a scale, cast for each use, beside a float32 master."""

    def __init__(self) -> None:
        super().__init__()
        self.master = nn.Parameter(torch.randn(512, 512) / 22)
        self.register_buffer("packed", torch.zeros(512, 512, dtype=torch.float8_e4m3fn))
        self.register_buffer("other", torch.zeros(512, 512, dtype=torch.float8_e5m2))
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.copy_(448 / self.master.abs().max())
            self.packed.copy_((self.master * self.scale).to(torch.float8_e4m3fn))
            self.other.copy_(self.master.to(torch.float8_e5m2))
        rounded = self.packed.float() / self.scale + 0.1 * self.other.float()
        return inputs @ (self.master + (rounded - self.master).detach())


def float8(_: Path) -> Kept:
    """float8 weights of two kinds, cast at each use."""
    return train(nn.Sequential(Scaled(), Scaled()), width=512)


def integers(_: Path) -> Kept:
    """Masks of bool, tables of int64, int32, int16, int8 and uint8, counted up in every step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    tables = [torch.randint(0, 100, (256, 256), dtype=kind) for kind in kinds]
    masks, losses = [torch.rand(256, 256) < 0.5 for _ in range(2)], []
    for _step in range(5):
        inputs = torch.randn(256, 256)
        optimizer.zero_grad()
        out = model(inputs).masked_fill(masks[0], 0.5)
        out = torch.where(masks[1] & ~masks[0], out, out * 0.5)
        loss = (out.gather(1, tables[0]) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        for table in tables:
            table.add_(1).remainder_(101)
        tables[4].bitwise_xor_(tables[3].abs().to(torch.uint8))
        masks[1].logical_not_()
        losses.append(loss.item())
    return {"losses": losses, "tables": tables, "masks": masks, "model": model}


class Odd(nn.Module):
    """Parameters and buffers of no, one and odd sizes, NaN, infinities and negative zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net(depth=3)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.odd = nn.Parameter(torch.randn(65537))
        specials = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 1e-45])
        self.register_buffer("specials", specials.repeat(13001))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.specials.mul_(-1.0)
        out = self.body(inputs) * self.gain + self.odd[: inputs.numel()].view_as(inputs)
        return out + self.empty.sum() + self.specials.nan_to_num(0.0, 0.0, 0.0).mean()


def odd_sizes(_: Path) -> Kept:
    """Empty, 0-dim and odd-sized tensors; NaN, infinities, -0.0 and denormals in a buffer."""
    return train(Odd())


def sparse_matrix(_: Path) -> Kept:
    """Fixed sparse matrices of three layouts in the forward pass, and a nested tensor."""
    dense = torch.randn(256, 256) * (torch.rand(256, 256) < 0.3)
    matrices = [dense.to_sparse(), dense.to_sparse_csr(), dense.t().contiguous().to_sparse_csc()]
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(5):
        inputs = torch.randn(256, 256)
        optimizer.zero_grad()
        out = torch.sparse.mm(matrices[0], model(inputs)) / 16
        out = out + (matrices[1] @ inputs) / 16 + matrices[2].to_dense() / 16
        parts = torch.nested.as_nested_tensor([out[:100], out[100:]], layout=torch.jagged)
        loss = mse(torch.cat(list((parts * 2).unbind())), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model}


def quantised(_: Path) -> Kept:
    """Fake quantisation with observers, as in quantisation-aware training."""

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 256)
            self.register_buffer("scale", torch.full((256,), 0.01))
            self.register_buffer("zero", torch.zeros(256, dtype=torch.int32))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.scale.copy_(self.layer.weight.abs().amax(1) / 127)
            weight = torch.fake_quantize_per_channel_affine(
                self.layer.weight, self.scale, self.zero, 0, -128, 127
            )
            return nn.functional.linear(inputs, weight, self.layer.bias)

    return train(nn.Sequential(Quantised(), nn.ReLU(), Quantised(), nn.ReLU(), Quantised()))


def autocast(_: Path, name: str) -> Kept:
    """float32 weights under autocast, whose casts are cached until it ends."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, name)):
            out = model(inputs) + model(inputs.flip(0))
            loss = mse(out.float(), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message=".*(prototype|beta state|sparse csr).*")
    main(whole, complex_numbers, float8, integers, odd_sizes, sparse_matrix, quantised, autocast)
