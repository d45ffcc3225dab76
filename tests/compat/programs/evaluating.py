"""Evaluates every fourth step, and saves checkpoints of model and optimizer in mid-run."""

import copy
import io
import pickle

import torch
from outcome import begin, save
from safetensors.torch import save_file
from torch import nn


def evaluate(model: nn.Module, inputs: torch.Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        loss = sum(model(part).square().mean().item() for part in inputs.chunk(3))
    model.train()
    return float(loss)


def main() -> None:
    out = begin()
    layers = [nn.Linear(256, 512), nn.LayerNorm(512), nn.GELU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_back = torch.randn(384, 256)

    losses, best = [], {}
    for step in range(10):
        inputs = torch.randn(256, 256)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        if step == 4:  # with gradients, between backward and step
            torch.save([p.grad for p in model.parameters()], out / "gradients.pt")
        optimizer.step()
        losses.append(loss.item())
        if step % 4 == 1:
            losses.append(evaluate(model, held_back))
            best = copy.deepcopy(model.state_dict())
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(states, out / f"step{step}.pt")
            save_file(model.state_dict(), out / f"step{step}.safetensors")
        if step == 5:
            buffer = io.BytesIO()
            torch.save(model, buffer)
            (out / "whole.pt").write_bytes(buffer.getvalue())
            torch.save(pickle.loads(pickle.dumps(model.state_dict())), out / "pickled.pt")
            model[0].bias.detach().numpy().tofile(out / "bias.raw")
        if step == 6:
            model.load_state_dict(torch.load(out / "step5.pt")["model"])
    torch.save(best, out / "best.pt")
    save(out, losses, model)


if __name__ == "__main__":
    main()
