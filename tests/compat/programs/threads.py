"""Programs of several threads and processes."""

import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

mse = nn.functional.mse_loss


class Waves(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 384

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.sin(torch.arange(256.0) * (index + 1))


def loaded(_: Path, workers: str) -> Kept:
    """A DataLoader with worker processes that stay, shuffled."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.utils.data.DataLoader(
        Waves(), 64, shuffle=True, num_workers=int(workers), persistent_workers=workers != "0",
        drop_last=True,
    )  # fmt: skip
    losses = []
    for _epoch in range(2):
        for inputs in data:
            optimizer.zero_grad()
            loss = mse(model(inputs), inputs)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def prefetched(_: Path) -> Kept:
    """A thread that prepares batches with tensor operators, a queue ahead."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)
    generator = torch.Generator().manual_seed(5)

    def prepare() -> None:
        for _batch in range(6):
            raw = torch.randn(64, 256, generator=generator)
            batches.put((raw - raw.mean(0)) / raw.std(0))

    thread = threading.Thread(target=prepare)
    thread.start()
    losses = []
    for _step in range(6):
        inputs = batches.get()
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    thread.join()
    return {"losses": losses, "model": model}


def watched(_: Path) -> Kept:
    """Threads that read weights and states after each step, and one that changes them."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    norms, losses = [], []

    def look() -> list[float]:
        states = [s["exp_avg"].norm().item() for s in optimizer.state.values()]
        return [p.detach().norm().item() for p in model.parameters()] + states

    def decay() -> None:
        with torch.no_grad():
            model[2].weight.mul_(0.9)
            model[2].weight.grad.zero_()

    with ThreadPoolExecutor(2) as pool:
        for _step in range(5):
            inputs = torch.randn(64, 256)
            optimizer.zero_grad()
            loss = mse(model(inputs), inputs)
            loss.backward()
            pool.submit(decay).result()
            optimizer.step()
            norms.append(pool.submit(look).result())
            losses.append(loss.item())
    return {"losses": losses, "norms": norms, "model": model}


def backward_elsewhere(_: Path) -> Kept:
    """Backward in another thread than forward."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    with ThreadPoolExecutor(1) as pool:
        for _step in range(5):
            inputs = torch.randn(64, 256)
            optimizer.zero_grad()
            loss = mse(model(inputs), inputs)
            pool.submit(loss.backward).result()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "model": model}


def all_elsewhere(_: Path) -> Kept:
    """The whole training in a thread that is not the main one."""
    kept: Kept = {}

    def work() -> None:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for _step in range(5):
            inputs = torch.randn(64, 256)
            optimizer.zero_grad()
            loss = mse(model(inputs), inputs)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        kept.update(losses=losses, model=model)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return kept


def forked(out: Path) -> Kept:
    """A process forked in mid-training that evaluates and saves; the parent trains on."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    held, losses = torch.randn(64, 256), []
    for step in range(6):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 3:
            if (child := os.fork()) == 0:
                with torch.no_grad():
                    found = mse(model(held), held).item()
                torch.save([found, optimizer.state_dict()], out / "child.pt")
                os._exit(0)
            losses.append(os.waitpid(child, 0)[1])
    return {"losses": losses, "model": model}


if __name__ == "__main__":
    main(loaded, prefetched, watched, backward_elsewhere, all_elsewhere, forked)
