"""SGD on data of numpy: a frozen layer, a constant buffer and one that is written each step."""

import numpy as np
import torch
from outcome import begin, save
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(256, 768).requires_grad_(False)
        self.inner = nn.Linear(768, 768)
        self.outer = nn.Linear(768, 256)
        self.register_buffer("table", torch.rand(512, 768))
        self.register_buffer("seen", torch.zeros(512, 768))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.frozen(inputs)) + self.table
        self.seen.mul_(0.9).add_(hidden.detach(), alpha=0.1)
        return self.outer(torch.relu(self.inner(hidden)))


def main() -> None:
    out = begin()
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01)

    random = np.random.default_rng(0)
    losses = []
    for _ in range(7):
        inputs = torch.from_numpy(random.standard_normal((512, 256), dtype=np.float32))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
