"""A small training loop in a package."""

import torch
from outcome import begin, save

from .model import make


def main() -> None:
    out = begin()
    model = make()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)

    losses = []
    for _ in range(7):
        inputs = torch.randn(256, 256)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).abs().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
