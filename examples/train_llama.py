"""Train a small Llama on English text that ships with Python. Knows nothing of teraio."""

import argparse
import json
import time
from pathlib import Path

import torch
from text import batches
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--losses", type=Path, help="write losses and step times to this file")
    args = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=448,
        intermediate_size=1216,
        num_hidden_layers=8,
        num_attention_heads=7,
        max_position_embeddings=args.length,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")

    losses, seconds = [], []
    for tokens in batches(args.batch, args.length)[: args.steps]:
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        print(f"step {len(losses)}: loss {losses[-1]:.4f}, {seconds[-1]:.2f} s")

    if args.losses:
        args.losses.write_text(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
