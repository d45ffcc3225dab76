"""Autocast to bfloat16 with float32 weights."""

import torch
from outcome import begin, save
from torch import nn


def main() -> None:
    out = begin()
    layer = nn.TransformerEncoderLayer(192, 4, 768, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    losses = []
    for _ in range(7):
        inputs = torch.randn(4, 64, 192)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs).float(), inputs.roll(1, 1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
