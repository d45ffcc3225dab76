"""Trains a small language model on the GPU with kernels that give the same bits every time.

Writes all losses, and a digest of every parameter and optimizer state, to the file it is given.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
config = LlamaConfig(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=6,
    num_attention_heads=8,
    max_position_embeddings=512,
    use_cache=False,
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(int(sys.argv[2])):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(4096, (8, 512), generator=generator).cuda()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.detach())


def digest(tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


states = [v for state in optimizer.state.values() for v in state.values()]
with Path(sys.argv[1]).open("w") as out:
    json.dump(
        {
            "losses": [loss.item() for loss in losses],
            "parameters": digest(model.parameters()),
            "states": digest(states),
        },
        out,
    )
