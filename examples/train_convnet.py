"""Train a small ResNet with batch norm on images of stripes, told apart by their direction."""

import argparse
import math

import torch
from transformers import ResNetConfig, ResNetForImageClassification


def stripes(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, shape (count, 3, size, size), and which of 8 directions each one has."""
    labels = torch.randint(8, (count,))
    angle = (labels * (math.pi / 8)).view(-1, 1, 1)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    wave = torch.sin((x * angle.cos() + y * angle.sin()) * 0.8)
    return wave.unsqueeze(1).repeat(1, 3, 1, 1) + 0.1 * torch.randn(count, 3, size, size), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=8,
    )
    model = ResNetForImageClassification(config).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    for number in range(1, args.steps + 1):
        images, labels = stripes(args.batch, args.size)
        images = images.contiguous(memory_format=torch.channels_last)
        loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {number}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
