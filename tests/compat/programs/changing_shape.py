"""The batch of step 4 is shorter than the others, as at the end of an epoch."""

import torch
from outcome import begin, save
from torch import nn


def main() -> None:
    out = begin()
    model = nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU())
    model.append(nn.Linear(768, 192))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    losses = []
    for step in range(8):
        inputs = torch.randn(160 if step == 4 else 512, 192)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
