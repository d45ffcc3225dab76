"""Stores: where the bytes of offloaded tensors go."""
