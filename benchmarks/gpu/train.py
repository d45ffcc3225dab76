"""Trains a Llama-like model on random tokens: what the GPU benchmark runs, plainly and under plans.

Knows nothing of teraio. Step times are the device's own, from one optimizer step to the next.
"""

from __future__ import annotations

import argparse
import itertools
import json
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = {
    "tiny": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6,
             "num_attention_heads": 8, "vocab_size": 4096},
    "1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
           "num_attention_heads": 16, "vocab_size": 32_000},
    "8b": {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256},
}  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="1b")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--checkpointing", action="store_true", help="recompute each block")
    parser.add_argument("--save-on-cpu", action="store_true", help="torch's own activation offload")
    parser.add_argument("--fsdp-offload", action="store_true", help="FSDP2, all states on the CPU")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--out", type=Path, help="where losses and times go, as JSON")
    return parser.parse_args()


def build(options: argparse.Namespace) -> LlamaForCausalLM:
    shape = SHAPES[options.model]
    config = LlamaConfig(**shape, max_position_embeddings=options.length, use_cache=False)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(default)
    if options.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def shard(model: LlamaForCausalLM) -> None:
    """Let FSDP2 keep parameters, gradients and optimizer states on the CPU, block by block."""
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1
    )
    policy = CPUOffloadPolicy(pin_memory=True)
    model.to("cpu")
    for layer in model.model.layers:
        fully_shard(layer, offload_policy=policy)
    fully_shard(model, offload_policy=policy)


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(options.deterministic)
    model = build(options)
    model.train()
    if options.fsdp_offload:
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    vocabulary = SHAPES[options.model]["vocab_size"]
    shape = (options.batch, options.length)
    batches = [torch.randint(vocabulary, shape, device="cuda") for _ in range(4)]
    offload = torch.autograd.graph.save_on_cpu(pin_memory=True)
    losses, marks = [], []
    for step in range(options.steps):
        tokens = batches[step % len(batches)]
        with offload if options.save_on_cpu else nullcontext():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]
    result = {
        "losses": [loss.item() for loss in losses],
        "step_ms": times,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
    }
    if options.fsdp_offload:
        torch.distributed.destroy_process_group()
    if options.out is not None:
        options.out.write_text(json.dumps(result))
    print(json.dumps({"step_ms": times[-1:], "reserved_bytes": result["reserved_bytes"]}))


if __name__ == "__main__":
    main()
