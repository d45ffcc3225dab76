"""Distributed training in a world of one, over gloo."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from variants import Kept, main, net

mse = nn.functional.mse_loss


def train(model: nn.Module, called: nn.Module, optimizer: torch.optim.Optimizer) -> Kept:
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(called(inputs), inputs)
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        losses.append(loss.item())
    return {"losses": losses, "model": model}


def ddp(_: Path, bucket_view: str) -> Kept:
    """DistributedDataParallel; a bucket of gradients is one storage where they are views of it."""
    model = net()
    called = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view == "True")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept = train(model, called, optimizer)
    kept["storages"] = len({p.grad.untyped_storage()._cdata for p in model.parameters()})
    return kept


def ddp_accumulated(_: Path) -> Kept:
    """DDP with `no_sync` over micro-batches."""
    model = net()
    called = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _step in range(5):
        optimizer.zero_grad()
        for micro in range(3):
            inputs = torch.randn(32, 256)
            if micro < 2:
                with called.no_sync():
                    loss = mse(called(inputs), inputs)
                    loss.backward()
            else:
                loss = mse(called(inputs), inputs)
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return {"losses": losses, "model": model}


def fsdp(_: Path) -> Kept:
    """FSDP2: `fully_shard` of each layer and of the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept = train(model, model, optimizer)
    kept["model"] = {n: v.to_local() for n, v in model.state_dict().items()}
    return kept


def dtensors(_: Path) -> Kept:
    """Weights that are DTensors, sharded and replicated by tensor parallelism."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (1,))
    model = net()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(),
            "6": RowwiseParallel()}  # fmt: skip
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    kept = train(model, model, optimizer)
    kept["model"] = {n: v.to_local() for n, v in model.state_dict().items()}
    return kept


def sharded_states(_: Path) -> Kept:
    """ZeroRedundancyOptimizer beside DDP."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = net()
    called = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    return train(model, called, optimizer)


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        main(ddp, ddp_accumulated, fsdp, dtensors, sharded_states)
        dist.destroy_process_group()
