"""Batches that come from two worker processes of a data loader."""

import torch
from outcome import begin, save
from torch import nn


class Waves(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.sin(torch.arange(16 * 256) * (index + 1)).view(16, 256)


def main() -> None:
    out = begin()
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    losses = []
    for inputs in torch.utils.data.DataLoader(Waves(), batch_size=12, num_workers=2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
