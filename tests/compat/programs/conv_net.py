"""A convolutional net in channels_last: in-place ReLU, batch norm, SGD with momentum."""

import torch
from outcome import begin, save
from torch import nn


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = block(3, 32)
        self.first = nn.Sequential(block(32, 64), nn.MaxPool2d(2), block(64, 128))
        self.second = nn.Sequential(block(128, 128), block(128, 128))
        self.head = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.first(self.stem(images))
        features = torch.relu_(self.second(features) + features)
        return self.head(features.mean((2, 3)))


def main() -> None:
    out = begin()
    model = Net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    losses = []
    for _ in range(7):
        images = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), torch.randint(0, 10, (8,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
