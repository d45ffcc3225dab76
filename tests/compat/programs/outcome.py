"""What each program of this folder takes from its command line and leaves behind."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn


def begin(*, seed: int = 0) -> Path:
    """Make the program deterministic and return the folder named by `--out`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    return out


def save(out: Path, losses: Sequence[float], *models: nn.Module) -> None:
    """Save the losses, and the parameters, buffers and last gradients of the models."""
    (out / "losses.json").write_text(json.dumps(list(losses)))
    for number, model in enumerate(models):
        gradients = {name: p.grad for name, p in model.named_parameters()}
        torch.save({"state": model.state_dict(), "gradients": gradients}, out / f"model{number}.pt")
