"""Replays an offload plan inside a running PyTorch program."""
