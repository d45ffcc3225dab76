"""For scripts that hold several small programs: one is chosen by its name on the command line."""

import argparse
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Kept = dict[str, Any]


def main(*programs: Callable[[Path], Kept]) -> None:
    """Run `python script.py --out DIR NAME [WORDS]`, and save what the program keeps.

    A program is given the folder for its files, and the words.
    """
    known = {program.__name__: program for program in programs}
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("program", choices=known)
    parser.add_argument("words", nargs="*")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kept = known[chosen.program](chosen.out, *chosen.words)
    torch.save(content(kept), chosen.out / "kept.pt")


def content(value: Any) -> Any:
    """Return what there is to a model, an optimizer or a tensor, as tensors and plain values."""
    if isinstance(value, nn.Module):
        gradients = {name: p.grad for name, p in value.named_parameters()}
        return {"state": value.state_dict(), "gradients": gradients}
    if isinstance(value, torch.optim.Optimizer):
        return value.state_dict()
    if isinstance(value, dict):
        return {key: content(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [content(item) for item in value]
    return value


def digest(value: bytes) -> str:
    """Return what tells bytes from others."""
    return hashlib.sha256(value).hexdigest()


def net(width: int = 256, depth: int = 4) -> nn.Sequential:
    """Return a small model whose weights take 256 KiB each."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers[:-1])
