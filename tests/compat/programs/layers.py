"""Layers of torch, each in a small model."""

from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

mse = nn.functional.mse_loss


def train(model: nn.Module, *shape: int, tokens: int = 0) -> Kept:
    """Train on random inputs, or on tokens; what the model gives is made small."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randint(0, tokens, shape) if tokens else torch.randn(shape)
        optimizer.zero_grad()
        out = model(inputs)
        loss = (out[0] if isinstance(out, tuple) else out).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def recurrent(_: Path, name: str) -> Kept:
    """RNN, LSTM and GRU of two layers, one of them both ways."""
    layer = getattr(nn, name)
    return train(layer(96, 128, 2, batch_first=True, dropout=0.1, bidirectional=True), 8, 24, 96)


def packed(_: Path) -> Kept:
    """An LSTM over packed sequences whose state is carried on, detached, from batch to batch."""
    model = nn.LSTM(128, 192, 1, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = (torch.zeros(1, 8, 192), torch.zeros(1, 8, 192))
    losses = []
    for _step in range(5):
        optimizer.zero_grad()
        lengths = torch.tensor([24, 20, 20, 16, 16, 12, 8, 4])
        sequence = nn.utils.rnn.pack_padded_sequence(torch.randn(8, 24, 128), lengths, True)
        out, state = model(sequence, state)
        state = (state[0].detach(), state[1].detach())
        loss = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "state": state}


def cells(_: Path) -> Kept:
    """An LSTM cell in a Python loop: backpropagation through time."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(128, 192)
            self.out = nn.Linear(192, 128)

        def forward(self, sequence: torch.Tensor) -> torch.Tensor:
            hidden = cell = sequence.new_zeros(len(sequence), 192)
            outs = []
            for inputs in sequence.unbind(1):
                hidden, cell = self.cell(inputs, (hidden, cell))
                outs.append(self.out(hidden))
            return torch.stack(outs, 1)

    return train(Loop(), 32, 8, 128)


class Attention(nn.Module):
    """Attention in the way that is named."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.mixed, self.out = how, nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        query, key, value = self.mixed(hidden).view(batch, length, 3, 4, 32).permute(2, 0, 3, 1, 4)
        if self.how == "flex":
            from torch.nn.attention.flex_attention import flex_attention

            def nearer(score: torch.Tensor, _b: int, _h: int, q: int, k: int) -> torch.Tensor:
                return score - (q - k).abs()

            with torch.no_grad():  # torch has no backward of it for the CPU
                mixed = flex_attention(query.detach(), key.detach(), value.detach(), nearer)
            mixed = mixed + query * key
        elif self.how == "mask":
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        elif self.how == "math":
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
                mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
        else:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, 128))


def attention(_: Path, how: str) -> Kept:
    """Scaled dot-product attention: flash, math with dropout, with a mask, flex_attention."""
    return train(nn.Sequential(Attention(how), Attention(how)), 4, 64, 128)


def transformer(_: Path) -> Kept:
    """nn.TransformerEncoder and nn.MultiheadAttention, with a padding mask and attention maps."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.pool = nn.MultiheadAttention(128, 4, batch_first=True)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            mask = torch.arange(32).expand(len(hidden), 32) >= 28
            hidden = self.encoder(hidden, src_key_padding_mask=mask)
            mixed, weights = self.pool(hidden, hidden, hidden, average_attn_weights=False)
            return mixed + weights.mean()

    return train(Model(), 8, 32, 128)


def conv(_: Path, layout: str) -> Kept:
    """2-d convolutions with batch norm, pooling and upsampling, in either memory format."""
    form = torch.channels_last if layout == "last" else torch.contiguous_format
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, padding=1, groups=2), nn.GroupNorm(4, 64), nn.SiLU(inplace=True),
        nn.MaxPool2d(2), nn.ConvTranspose2d(64, 32, 2, stride=2), nn.Dropout2d(0.1),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(32, 3, 1),
    ).to(memory_format=form)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, strides = [], []
    for _step in range(5):
        images = torch.randn(4, 3, 48, 48).to(memory_format=form)
        optimizer.zero_grad()
        out = model(images)
        strides += [out.stride(), model[3].weight.stride()]
        loss = mse(out, images)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "strides": strides, "model": model}


def conv_other(_: Path) -> Kept:
    """1-d and 3-d convolutions, depthwise and dilated, adaptive pooling, padding that reflects."""
    model = nn.Sequential(
        nn.Conv1d(16, 64, 5, padding=2, padding_mode="reflect"), nn.GELU(),
        nn.Conv1d(64, 64, 3, groups=64, dilation=2, padding=2), nn.InstanceNorm1d(64, affine=True),
        nn.Unflatten(2, (8, 8, 8)), nn.Conv3d(64, 16, 3, padding=1), nn.AdaptiveAvgPool3d(4),
        nn.LazyConv3d(8, 1), nn.PixelShuffle(2),
    )  # fmt: skip
    model(torch.randn(1, 16, 512))
    return train(model, 2, 16, 512)


def bags(_: Path) -> Kept:
    """Embedding bags with offsets and weights, and one table with a padding row and max norm."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(2000, 128, mode="sum")
            self.means = nn.EmbeddingBag(1000, 128, mode="mean", padding_idx=0)
            self.normed = nn.Embedding(1000, 128, padding_idx=1, max_norm=1.0)
            self.head = net(128, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            starts = torch.arange(0, tokens.numel(), tokens.shape[1])
            weights = torch.linspace(0, 1, tokens.numel())
            pooled = self.bag(tokens.flatten(), starts, per_sample_weights=weights)
            pooled = pooled + self.means(tokens % 1000) + self.normed(tokens % 1000).mean(1)
            return self.head(pooled)

    return train(Model(), 64, 12, tokens=2000)


def normed(_: Path) -> Kept:
    """Layer, RMS, batch, group and local response norm, some without affine parts; PReLU, GLU."""
    layers = [nn.Linear(256, 512), nn.GLU(), nn.LayerNorm(256), nn.PReLU(256), nn.Linear(256, 256)]
    layers += [nn.RMSNorm(256), nn.Unflatten(1, (16, 16)), nn.LocalResponseNorm(3), nn.Flatten()]
    layers += [nn.BatchNorm1d(256, affine=False), nn.Bilinear(16, 16, 256)]
    model = nn.Sequential(*layers[:-1])
    bilinear = layers[-1]
    whole = nn.ModuleList([model, bilinear])

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        hidden = model(inputs)
        return bilinear(hidden[:, :16].contiguous(), hidden[:, 16:32].contiguous()) + hidden

    whole.forward = forward
    return train(whole, 128, 256)


def losses(_: Path) -> Kept:
    """Losses that sort, align or count: CTC, triplets, cosine, Huber, smoothing, KL, einsum."""
    model = net(128, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    found = []
    f = nn.functional
    for _step in range(5):
        inputs = torch.randn(64, 128)
        optimizer.zero_grad()
        out = model(inputs)
        scores = out.view(16, 4, 128).log_softmax(-1)
        loss = f.ctc_loss(scores, torch.randint(1, 128, (4, 5)), [16] * 4, [5] * 4)
        loss = loss + f.triplet_margin_loss(out[:20], out[20:40], out[40:60])
        loss = loss + f.cross_entropy(out, torch.randint(0, 128, (64,)), label_smoothing=0.1)
        loss = loss + f.kl_div(out.log_softmax(1), inputs.softmax(1), reduction="batchmean")
        loss = loss + f.huber_loss(out.sort(1).values, inputs) + f.cosine_similarity(out, inputs)[3]
        loss = loss + torch.einsum("bi,bj,bk->", out[:8, :8], out[:8, 8:16], out[:8, :8]).abs()
        loss = (
            loss + out.topk(5).values.cumsum(1).logsumexp(1).mean() + torch.cdist(out, out).mean()
        )
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return {"losses": found, "model": model}


def algebra(_: Path) -> Kept:
    """Linear algebra with several results: QR, SVD, Cholesky, solve, eigenvectors, inverse."""

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        hidden = model(inputs)
        square = hidden.t() @ hidden / 256 + torch.eye(128) * 4
        q, r = torch.linalg.qr(hidden)
        values = torch.linalg.eigvalsh(square)
        low = torch.linalg.cholesky(square)
        solved = torch.linalg.solve(square, hidden[:128])
        return q @ r + values @ low.inverse() + solved + torch.linalg.svdvals(hidden).sum()

    model = net(128, 3)
    whole = nn.ModuleList([model])
    whole.forward = lambda inputs: forward(inputs) * 0.01
    return train(whole, 128, 128)


def experts(_: Path) -> Kept:
    """A mixture of experts: tokens routed by what the router says, so shapes depend on data."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(128, 4)
            self.experts = nn.ModuleList(net(128, 2) for _ in range(4))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            weights, chosen = self.router(hidden).softmax(1).topk(2)
            out = torch.zeros_like(hidden)
            for number, expert in enumerate(self.experts):
                rows, slots = torch.where(chosen == number)
                if len(rows):
                    out.index_add_(0, rows, expert(hidden[rows]) * weights[rows, slots, None])
            return out

    return train(Model(), 512, 128)


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message=".*(Lazy|flex_attention called without).*")
    main(recurrent, packed, cells, attention, transformer, conv, conv_other, bags, normed, losses,
         algebra, experts)  # fmt: skip
