"""A program that is started with `python -m package`."""
