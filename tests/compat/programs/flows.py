"""Programs whose steps differ: in shape, in what is computed, or in that they end early."""

import gc
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

mse = nn.functional.mse_loss


def batches(_: Path) -> Kept:
    """Batches of four sizes in turn, and a last one that is short."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for size in (64, 64, 128, 64, 128, 32, 64, 7):
        inputs = torch.randn(size, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def branches(_: Path) -> Kept:
    """Layers skipped or repeated by what the data say, and one that not every step uses."""
    model = net(depth=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(8):
        inputs = torch.randn(64, 256) * (1 + step % 3)
        optimizer.zero_grad()
        hidden = model[:2](inputs)
        while hidden.abs().mean() > 0.25:
            hidden = torch.tanh(model[2](hidden)) * 0.5
        if step % 3 == 2:
            hidden = hidden + model[4](hidden)
        loss = mse(model[6:](hidden), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "model": model, "optimizer": optimizer}


def stopped_early(out: Path) -> Kept:
    """The best weights kept, an early end of the loop, and those weights loaded back."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    best, lowest, losses = {}, float("inf"), []
    for step in range(50):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if loss < lowest:
            lowest = loss.item()
            best = {name: value.clone() for name, value in model.state_dict().items()}
        if step == 6:
            break
    model.load_state_dict(best)
    torch.save(best, out / "best.pt")
    return {"losses": losses, "model": model}


def caught(_: Path) -> Kept:
    """Errors in forward, in backward and in the data, caught; training goes on."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, errors = [], []

    def broken(_slope: torch.Tensor) -> None:
        msg = "in backward"
        raise ArithmeticError(msg)

    for step in range(9):
        optimizer.zero_grad()
        try:
            inputs = torch.randn(64, 255 if step == 3 else 256)
            out = model(inputs)
            if step == 5:
                out.register_hook(broken)
            if step == 6:
                torch.randn(10) @ torch.randn(11)
            loss = mse(out, inputs)
            loss.backward()
        except (RuntimeError, ArithmeticError) as error:
            errors.append(str(error))
            del error
            continue
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "errors": errors, "model": model, "optimizer": optimizer}


def interrupted(out: Path) -> Kept:
    """Ctrl-C in the midst of a step, caught to save what there is."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []

    def strike(_slope: torch.Tensor) -> None:
        if len(losses) == 5:
            raise KeyboardInterrupt

    try:
        while True:
            inputs = torch.randn(64, 256)
            optimizer.zero_grad()
            hidden = model[:4](inputs)
            hidden.register_hook(strike)
            loss = mse(model[4:](hidden), inputs)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    except KeyboardInterrupt:
        torch.save(model.state_dict(), out / "interrupted.pt")
    return {"losses": losses, "model": model, "optimizer": optimizer}


def evaluated(_: Path) -> Kept:
    """Evaluation without gradients after every second step, in inference mode once."""
    model = nn.Sequential(net(depth=3), nn.Dropout(0.1), nn.BatchNorm1d(256))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    held, losses = torch.randn(96, 256), []
    for step in range(7):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 2:
            model.eval()
            with torch.inference_mode() if step == 3 else torch.no_grad():
                losses += [mse(model(part), part).item() for part in held.chunk(3)]
            model.train()
    return {"losses": losses, "model": model}


def generated(_: Path) -> Kept:
    """Text generated between steps with a cache of keys that grows token by token."""
    embedding, mixed, head = nn.Embedding(200, 128), nn.Linear(128, 384), nn.Linear(128, 200)
    model = nn.ModuleList([embedding, mixed, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, texts = [], []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        causal = query.shape[1] > 1
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    for step in range(6):
        tokens = torch.randint(0, 200, (16, 33))
        optimizer.zero_grad()
        hidden = embedding(tokens[:, :-1])
        scores = head(hidden + attend(*mixed(hidden).chunk(3, -1)))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step in (1, 4):
            text, keys, values = [1], torch.empty(4, 0, 128), torch.empty(4, 0, 128)
            with torch.no_grad():
                for _token in range(8):
                    hidden = embedding(torch.tensor([[text[-1]]]).expand(4, 1))
                    query, key, value = mixed(hidden).chunk(3, -1)
                    keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
                    scores = head(hidden + attend(query, keys, values))
                    text.append(int(scores[0, -1].softmax(0).multinomial(1)))
            texts.append(text)
    return {"losses": losses, "texts": texts, "model": model}


def cycles(_: Path) -> Kept:
    """Tensors kept alive by reference cycles until the garbage collector runs, now and then."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        hidden = model[:4](inputs)
        knot = [hidden.detach()]
        knot.append(knot)
        loss = mse(model[4:](hidden), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 3:
            gc.collect()
    return {"losses": losses, "model": model}


def pipelined(_: Path) -> Kept:
    """A generator that is a batch ahead, and results of past steps that live on in a queue."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, past = [], [torch.zeros(64, 256)] * 3

    def ahead() -> Iterator[torch.Tensor]:
        following = torch.randn(64, 256)
        for _batch in range(7):
            current, following = following, torch.randn(64, 256)
            yield current

    for inputs in ahead():
        optimizer.zero_grad()
        out = model(inputs)
        loss = mse(out, inputs) + 0.1 * mse(out, past[0])
        past = [*past[1:], out.detach()]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "past": past, "model": model}


def replayed(_: Path) -> Kept:
    """A replay buffer that is filled and sampled, and a target network that is copied."""
    model, target = net(128, 3), net(128, 3)
    target.load_state_dict(model.state_dict())
    buffer = torch.zeros(2048, 128)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    losses = []
    for step in range(8):
        buffer[step * 64 : step * 64 + 64] = torch.randn(64, 128)
        sample = buffer[torch.randint(0, step * 64 + 64, (256,))]
        with torch.no_grad():
            wanted = sample + 0.9 * target(sample)
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(sample), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 3 == 2:
            target.load_state_dict(model.state_dict())
    return {"losses": losses, "buffer": buffer, "model": model, "target": target}


if __name__ == "__main__":
    main(batches, branches, stopped_early, caught, interrupted, evaluated, generated, cycles,
         pipelined, replayed)  # fmt: skip
