"""Train a small GPT-2 with dropout on English text that ships with Python."""

import argparse

import torch
from text import batches
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=args.length,
        n_embd=384,
        n_layer=6,
        n_head=6,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    for number, tokens in enumerate(batches(args.batch, args.length)[: args.steps], 1):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"step {number}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
