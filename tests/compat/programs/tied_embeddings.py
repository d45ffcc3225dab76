"""A language model whose head is its embedding, with a gradient hook and a moving average."""

import copy

import torch
from outcome import begin, save
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 192)
        self.body = nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192))
        self.head = nn.Linear(192, 2000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        return self.head(hidden + self.body(hidden))


def main() -> None:
    out = begin()
    model = Tied()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.embedding.weight.register_hook(lambda gradient: gradient * 0.5)

    losses = []
    for _ in range(7):
        tokens = torch.randint(0, 2000, (4, 65))
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.lerp_(new.detach(), 0.1)
        losses.append(loss.item())
    save(out, losses, model, average)


if __name__ == "__main__":
    main()
