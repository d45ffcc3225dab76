"""Blocks under torch.utils.checkpoint: a tensor, a list of tensors, and reentrant."""

import torch
from outcome import begin, save
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Dropout(0.1))
        self.outer = nn.Linear(768, 192)

    def forward(self, hidden: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
        first = hidden[0] if isinstance(hidden, list) else hidden
        last = hidden[-1] if isinstance(hidden, list) else hidden
        return first + self.outer(self.inner(last))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(192, 192)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first = self.stem(inputs)
        second = checkpoint(self.blocks[0], first, use_reentrant=False)
        third = checkpoint(self.blocks[1], [first, second], use_reentrant=False)
        fourth = checkpoint(self.blocks[2], third, use_reentrant=True)
        return self.blocks[3](fourth)


def main() -> None:
    out = begin()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    losses = []
    for _ in range(7):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 192)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
