"""A transformers.Trainer that saves checkpoints on the way and the model at the end."""

import torch
from outcome import begin, save
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 256, (64,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    out = begin()
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints"),
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
    trainer.train()
    trainer.save_model(str(out / "final"))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    save(out, losses, model)


if __name__ == "__main__":
    main()
