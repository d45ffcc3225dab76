"""Memory that is reached without an operator: saved, printed, shared, copied, handed over."""

import copy
import ctypes
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn
from variants import Kept, digest, main, net

mse = nn.functional.mse_loss


def train(look: Callable[[int, nn.Module, torch.optim.Optimizer], object]) -> Kept:
    """Train, and look at model and optimizer after each backward and after each step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = []
    for step in range(6):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        seen.append(look(step, model, optimizer))
        optimizer.step()
        seen.append(look(step, model, optimizer))
    return {"seen": seen, "model": model, "optimizer": optimizer}


def torch_saved(out: Path) -> Kept:
    """`torch.save` in both formats in every half step, whole models too, and loaded at once."""

    def look(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> object:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        states["gradients"] = [p.grad for p in model.parameters()]
        torch.save(states, out / f"{step}.pt")
        loaded = torch.load(out / f"{step}.pt")
        file = io.BytesIO()
        torch.save(model if step == 3 else model[2], file, _use_new_zipfile_serialization=step < 3)
        file.seek(0)
        whole = torch.load(file, weights_only=False)
        mapped = torch.load(out / f"{step}.pt", mmap=True)["gradients"][0].sum().item()
        norms = [p.norm().item() for p in whole.parameters()]
        return norms, loaded["gradients"][2].sum().item(), mapped

    return train(look)


def safe_tensors(out: Path) -> Kept:
    """safetensors: `save_file`, `save_model`, and a load into the running model."""

    def look(step: int, model: nn.Module, _: object) -> None:
        save_file(model.state_dict(), out / f"{step}.safetensors")
        save_model(model, out / "model.safetensors")
        if step == 3:
            model.load_state_dict(load_file(out / "model.safetensors"))

    return train(look)


def copied(_: Path) -> Kept:
    """`copy.deepcopy`, `copy.copy`, pickling, cloning of model, states and gradients."""

    def look(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> object:
        twin, thin = copy.deepcopy(model), copy.copy(model)
        states = copy.deepcopy(optimizer.state_dict())
        packed = pickle.loads(pickle.dumps([p.grad for p in model.parameters()]))
        moment = states["state"].get(0, {}).get("exp_avg", torch.zeros(1))
        found = [twin[0].weight.sum(), thin[2].weight.sum(), packed[4].sum(), moment.sum()]
        if step == 4:
            model.load_state_dict(twin.state_dict())
        return [value.item() for value in found]

    return train(look)


def read(_: Path) -> Kept:
    """`tolist`, `item`, printing, formatting, iterating and hashing of bytes."""

    def look(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> object:
        weight, gradient = model[0].weight, model[4].weight.grad
        state = optimizer.state.get(weight, {})
        text = f"{weight} {gradient!r} {state} {model[2].bias[0]:.3f}"
        rows = [float(value) for value in weight[3, :4]]
        raw = bytes(model[6].bias.untyped_storage()[:64])
        typed = ctypes.string_at(gradient.data_ptr(), gradient.nbytes)
        return text, rows, gradient[1, :5].tolist(), digest(raw), digest(typed), hash(weight) > 0

    return train(look)


def in_numpy(_: Path) -> Kept:
    """Weights read with `numpy()` in each step: numpy shares their memory from then on."""

    def look(_step: int, model: nn.Module, _: object) -> object:
        whole = np.stack([module.weight.detach().numpy() for module in model[:4:2]])
        return digest(whole.tobytes()), float(np.asarray(model[0].bias.grad).sum())

    return train(look)


def from_numpy(_: Path) -> Kept:
    """All weights live in numpy arrays, which the script writes to on its own."""
    model = net()
    arrays = [p.detach().numpy().copy() for p in model.parameters()]
    for parameter, array in zip(model.parameters(), arrays, strict=True):
        parameter.data = torch.from_numpy(array)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        arrays[1] *= 0.5
        losses.append((loss.item(), [float(array.sum()) for array in arrays]))
    return {"losses": losses, "model": model}


def dlpack(_: Path) -> Kept:
    """Weights handed over by DLPack, written through it, and taken from it."""

    def look(step: int, model: nn.Module, _: object) -> object:
        other = torch.from_dlpack(model[2].weight.detach())
        if step == 2:
            other.mul_(0.5)
        array = np.from_dlpack(model[4].weight.detach())
        return digest(array.tobytes()), other.sum().item()

    return train(look)


def addressed(_: Path) -> Kept:
    """Gradients written through their addresses, as extensions do, in each step."""

    def look(step: int, model: nn.Module, _: object) -> object:
        gradient = model[2].weight.grad
        raw = (ctypes.c_float * gradient.numel()).from_address(gradient.data_ptr())
        raw[step] = 0.5
        return gradient[0, step].item()

    return train(look)


def of_storages(_: Path) -> Kept:
    """Methods of storages: copies, fills, slices, sizes and a resize."""
    spare = torch.zeros(256, 256)

    def look(step: int, model: nn.Module, _: object) -> object:
        storage = model[0].weight.untyped_storage()
        twin = storage.clone()
        spare.untyped_storage().copy_(storage)
        spare.untyped_storage()[step] = step
        if step == 3:
            spare.untyped_storage().fill_(0)
        raw = torch.empty(0, dtype=torch.uint8).set_(twin).numpy().tobytes()
        return digest(raw), storage.nbytes(), len(storage), spare.sum().item()

    return train(look) | {"spare": spare}


def shared(_: Path) -> Kept:
    """A model in shared memory, as for hogwild training."""
    model = net().share_memory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model}


def mapped(out: Path) -> Kept:
    """Frozen weights that are mapped from a file, and trained ones that are assigned from one."""
    torch.save(net().state_dict(), out / "base.pt")
    base, model = net(), net()
    base.load_state_dict(torch.load(out / "base.pt", mmap=True), assign=True)
    base.requires_grad_(False)
    model.load_state_dict(torch.load(out / "base.pt"), assign=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), base(inputs) + inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "base": base}


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    main(torch_saved, safe_tensors, copied, read, in_numpy, from_numpy, dlpack, addressed,
         of_storages, shared, mapped)  # fmt: skip
