"""An embedding with sparse gradients, and a layer whose weight is new memory after each step."""

import torch
from outcome import begin, save
from torch import nn


def main() -> None:
    out = begin()
    embedding = nn.Embedding(4000, 128, sparse=True)
    head = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
    rows = torch.optim.SparseAdam(embedding.parameters(), lr=1e-2)
    dense = torch.optim.SGD(head.parameters(), lr=0.1)

    losses = []
    for _ in range(7):
        tokens = torch.randperm(4000)[:2048].clone()
        rows.zero_grad()
        dense.zero_grad()
        loss = head(embedding(tokens)).square().mean()
        loss.backward()
        dense.step()
        rows.step()
        for parameter in head.parameters():
            parameter.data = parameter.data / parameter.data.norm().clamp(min=1)
        losses.append(loss.item())
    save(out, losses, embedding, head)


if __name__ == "__main__":
    main()
