"""`--verify`: gradients compared, step by step, with those of a run without offload."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence

import torch

from teraio.executor.memory import address_of
from teraio.profiler.errors import VerificationError
from teraio.profiler.storages import size_of
from teraio.profiler.touch import Hold, Touchable


class Digests:
    """Compares gradient digests with the expected ones, one per optimizer step."""

    def __init__(self, expected: Sequence[str]) -> None:
        self._expected = tuple(expected)
        self.compared = 0

    @property
    def wanted(self) -> bool:
        """Whether there are more steps to compare."""
        return self.compared < len(self._expected)

    def compare(self, optimizer: torch.optim.Optimizer, stream: Touchable) -> None:
        """Compare the gradients an optimizer is about to use.

        Raises VerificationError when they differ from those of the run without offload.
        """
        found = gradient_digest(optimizer, stream)
        if found != self._expected[self.compared]:
            msg = (
                f"the gradients of optimizer step {self.compared} differ from those of the run "
                f"without offload ({found[:12]} instead of {self._expected[self.compared][:12]})"
            )
            hint = (
                "is the script deterministic? Under load a math library may choose other kernels: "
                "try again with `OMP_NUM_THREADS=1` or, for MKL, `MKL_CBWR=COMPATIBLE`"
            )
            raise VerificationError(msg, hint=hint)
        self.compared += 1


def gradient_digest(optimizer: torch.optim.Optimizer, stream: Touchable | None) -> str:
    """Return the SHA-256 of all gradients' bytes, in the order of the parameters.

    Reads memory directly, so that no op is added to the program.
    """
    digest = hashlib.sha256()
    for gradient in _gradients(optimizer):
        storage = gradient.untyped_storage()
        if stream is not None:
            stream.touch(storage, Hold.NOT)
        digest.update(f"{tuple(gradient.shape)}{gradient.dtype}{gradient.stride()}".encode())
        digest.update((ctypes.c_char * size_of(storage)).from_address(address_of(storage)))
    return digest.hexdigest()


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.strided:
                yield gradient
