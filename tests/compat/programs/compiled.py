"""Models that are compiled, traced or scripted."""

from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

mse = nn.functional.mse_loss


def train(model: nn.Module, called: nn.Module) -> Kept:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(called(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def by(_: Path, backend: str) -> Kept:
    """`torch.compile` of the whole model, with a graph break, by the backend that is named."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = net(depth=2), net(depth=2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs)
            torch._dynamo.graph_break()
            return self.last(hidden)

    model = Broken()
    return train(model, torch.compile(model, backend=backend))


def scripted(_: Path, how: str) -> Kept:
    """TorchScript: `jit.script` and `jit.trace`, and a graph of torch.fx."""
    model = net()
    if how == "script":
        called = torch.jit.script(model)
    elif how == "trace":
        called = torch.jit.trace(model, torch.randn(64, 256))
    else:
        called = torch.fx.symbolic_trace(model)
    return train(model, called)


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message=".*(jit|TorchScript).*")
    main(by, scripted)
