"""Train a small Llama with gradients accumulated over micro-batches, and clipped."""

import argparse

import torch
from text import batches
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--micro", type=int, default=4, help="micro-batches in a step")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        max_position_embeddings=args.length,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)

    tokens = iter(batches(args.batch, args.length))
    for number in range(1, args.steps + 1):
        total = 0.0
        for _ in range(args.micro):
            micro = next(tokens)
            loss = model(input_ids=micro, labels=micro).loss / args.micro
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {number}: loss {total:.4f}")


if __name__ == "__main__":
    main()
