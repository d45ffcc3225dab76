"""An accelerate loop with gradient accumulation of 4, gradient clipping and a schedule."""

from itertools import islice

import torch
from accelerate import Accelerator
from outcome import begin, save
from torch import nn


def main() -> None:
    out = begin()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    layer = nn.TransformerEncoderLayer(192, 4, 512, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(256, 192), encoder, nn.Linear(192, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    tokens = torch.randint(0, 256, (160, 49))
    data = torch.utils.data.DataLoader(tokens, batch_size=4, shuffle=True)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)

    losses = []
    for number, batch in enumerate(islice(data, 32)):
        with accelerator.accumulate(model):
            scores = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                losses.append(norm.item())
            optimizer.step()
            schedule.step()
            if number < 31:
                optimizer.zero_grad()
        losses.append(loss.item())
    save(out, losses, accelerator.unwrap_model(model))


if __name__ == "__main__":
    main()
