"""A GPT-2 of transformers with dropout, AdamW with two parameter groups and a schedule."""

import torch
from outcome import begin, save
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    out = begin()
    config = GPT2Config(vocab_size=512, n_positions=64, n_embd=192, n_layer=3, n_head=6)
    model = GPT2LMHeadModel(config)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        tokens = torch.randint(0, 512, (8, 64))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    save(out, losses, model)


if __name__ == "__main__":
    main()
