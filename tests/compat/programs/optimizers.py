"""Every optimizer of torch, in the implementation that is named."""

from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

OPTIONS = {
    "ASGD": {"lr": 0.01},
    "Adadelta": {"lr": 1.0},
    "Adagrad": {"lr": 0.01},
    "LBFGS": {"lr": 0.1, "max_iter": 3, "history_size": 2},
    "Muon": {"lr": 0.01},
    "RMSprop": {"lr": 1e-3, "momentum": 0.9, "centered": True},
    "SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
}
WAYS = {
    "usual": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "one": {"foreach": False},
}


def stepped(_: Path, name: str, way: str) -> Kept:
    """Train with `torch.optim.NAME`."""
    model = net()
    width = 256
    if name == "Muon":  # takes matrices only, and multiplies them in bfloat16, which is slow here
        width = 128
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6)))
    options = {**OPTIONS.get(name, {}), **WAYS[way]}
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, width)

        def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), inputs)
            loss.backward()
            return loss

        if name == "LBFGS":
            losses.append(optimizer.step(closure).item())
        else:
            losses.append(closure().item())
            optimizer.step()
    return {"losses": losses, "model": model, "optimizer": optimizer}


def sparse(_: Path) -> Kept:
    """SparseAdam on an embedding with sparse gradients."""
    embedding = nn.Embedding(4000, 128, sparse=True)
    head = net(128, 2)
    rows = torch.optim.SparseAdam(embedding.parameters(), lr=1e-2)
    dense = torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _step in range(6):
        tokens = torch.randint(0, 4000, (512,))
        rows.zero_grad()
        dense.zero_grad()
        loss = head(embedding(tokens)).square().mean()
        loss.backward()
        rows.step()
        dense.step()
        losses.append(loss.item())
    gradient = embedding.weight.grad.coalesce()
    return {
        "losses": losses,
        "weight": embedding.weight,
        "gradient": [gradient.indices().clone(), gradient.values().clone()],
        "states": [rows, dense],
        "head": head,
    }


if __name__ == "__main__":
    main(stepped, sparse)
