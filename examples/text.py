"""English text that ships with Python, as batches of bytes."""

import pydoc_data.topics

import torch


def batches(size: int, length: int) -> torch.Tensor:
    """Return Python's own help pages as bytes, shape (batches, size, length)."""
    text = "\n".join(pydoc_data.topics.topics.values()).encode()
    count = len(text) // (size * length)
    tokens = torch.tensor(list(text[: count * size * length]))
    return tokens.view(count, size, length)
