"""AdamW and gradient clipping that each treat all parameters in one call."""

import torch
from outcome import begin, save
from torch import nn


def main() -> None:
    out = begin()
    model = nn.Sequential(*(nn.Linear(384, 384) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True, foreach=True)

    losses = []
    for _ in range(7):
        inputs = torch.randn(256, 384)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01, foreach=True)
        optimizer.step()
        losses += [loss.item(), norm.item()]
    save(out, losses, model)


if __name__ == "__main__":
    main()
