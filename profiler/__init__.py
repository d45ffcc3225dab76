"""Interception of a running PyTorch program, and the trace it is recorded into.

Importing this package imports no torch: the trace format is used where there is none.
"""
