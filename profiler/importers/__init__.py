"""Traces of other tools, read as traces of one step. Nothing here imports torch."""
