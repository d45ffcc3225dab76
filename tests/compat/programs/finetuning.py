"""Fine-tuning: a frozen base, low-rank adapters, a head of one's own."""

from pathlib import Path

import torch
from torch import nn
from variants import Kept, main, net

mse = nn.functional.mse_loss


class LowRank(nn.Module):
    """A frozen linear layer with a low-rank adapter beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 16)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(inputs) + (inputs @ self.down.t()) @ self.up.t() * 2


def lora(out: Path) -> Kept:
    """LoRA by hand: adapters trained, saved alone, merged for evaluation and taken out again."""
    model = net(512, 3)
    for position in (0, 2, 4):
        model[position] = LowRank(model[position], 16)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    losses = []
    for step in range(6):
        inputs = torch.randn(32, 512)
        optimizer.zero_grad()
        loss = mse(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 4:
            adapters = {n: p for n, p in model.named_parameters() if p.requires_grad}
            torch.save(adapters, out / "adapters.pt")
            with torch.no_grad():
                for layer in (model[0], model[2]):
                    change = layer.up @ layer.down * 2
                    layer.base.weight += change
                losses.append(mse(model[2].base(model[0].base(inputs)), inputs).item())
                for layer in (model[0], model[2]):
                    layer.base.weight -= layer.up @ layer.down * 2
    return {"losses": losses, "model": model, "optimizer": optimizer}


def peft_lora(out: Path) -> Kept:
    """A GPT-2 of transformers with LoRA adapters of peft, checkpointed, adapters saved."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=128, n_layer=2, n_head=4)
    base = GPT2LMHeadModel(config)
    base.gradient_checkpointing_enable({"use_reentrant": False})
    base.enable_input_require_grads()
    adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(base, adapters)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    losses = []
    for _step in range(5):
        tokens = torch.randint(0, 256, (8, 32))
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.save_pretrained(out / "adapters")
    merged = model.merge_and_unload()
    return {"losses": losses, "model": merged, "optimizer": optimizer}


def probed(_: Path) -> Kept:
    """A frozen base that runs under `no_grad`, and a head that is trained on what it gives."""
    base, head = net(512, 3).eval(), nn.Linear(512, 512)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _step in range(6):
        inputs = torch.randn(64, 512)
        with torch.no_grad():
            features = base(inputs)
        optimizer.zero_grad()
        loss = mse(head(features), inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "head": head, "base": base}


def distilled(_: Path) -> Kept:
    """A student that learns from a teacher's scores and hidden tensors, kept by hooks."""
    teacher, student = net(384, 4).requires_grad_(False).eval(), net(384, 2)
    hidden = {}
    teacher[4].register_forward_hook(lambda _m, _i, out: hidden.__setitem__("teacher", out))
    student[0].register_forward_hook(lambda _m, _i, out: hidden.__setitem__("student", out))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses = []
    for _step in range(5):
        inputs = torch.randn(64, 384)
        optimizer.zero_grad()
        wanted = teacher(inputs).softmax(1)
        loss = nn.functional.kl_div(student(inputs).log_softmax(1), wanted, reduction="batchmean")
        loss = loss + mse(hidden["student"], hidden["teacher"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "student": student, "teacher": teacher, "hidden": hidden}


if __name__ == "__main__":
    main(lora, peft_lora, probed, distilled)
