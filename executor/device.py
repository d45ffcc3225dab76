"""The device whose memory is the budget: how its bytes are reached, and in what order it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from teraio.executor.engine import TransferEngine
from teraio.executor.memory import memory_for
from teraio.executor.stores.memory import HostReach, aligned_memory
from teraio.planner.units import format_bytes
from teraio.profiler.errors import UsageError
from teraio.profiler.storages import tracked_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    import torch

    from teraio.executor.memory import Memory
    from teraio.executor.stores.base import Store
    from teraio.executor.stores.memory import Reach
    from teraio.executor.transfer import Moment, Mover


class Device(Protocol):
    """One device. `runs_ahead` is whether ops are launched before the device has come to them."""

    torch_device: torch.device
    memory: Memory
    reach: Reach
    runs_ahead: bool

    def now(self) -> Moment | None:
        """Return the moment when all that is launched so far is done; None if it is already."""

    def movers(
        self, stores: Mapping[str, Store], *, timed: bool = False, timeout_s: float = 0
    ) -> dict[str, Mover]:
        """Return what moves bytes to and from each store; `timed` transfers know when.

        `timeout_s` is that of a `TransferEngine`.
        """

    def lend_memory(self, nbytes: int) -> AbstractContextManager[int]:
        """Lend the address of memory on the device."""

    def enforce(self, budget_bytes: int) -> AbstractContextManager[None]:
        """Let torch take no more of the device's memory than `budget_bytes`, until the exit.

        Raises UsageError where no allocator can be held to that.
        """

    def allocator(self) -> dict[str, int] | None:
        """Return what torch's allocator held and gave out at most, in bytes, if it counts that.

        `retries` is how often it had to give back what it held to find room.
        """

    def give_back_cached(self) -> None:
        """Have torch's allocator give back what it holds but does not use."""

    def close(self) -> None:
        """Give back what was taken to reach the device."""


class CpuDevice:
    """CPU memory with an accounted budget, for a machine without an accelerator."""

    runs_ahead = False

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.memory = memory_for(torch_device)
        self.reach: Reach = HostReach()

    def now(self) -> None:
        """Return None: an op is done when its call returns."""

    def movers(
        self, stores: Mapping[str, Store], *, timed: bool = False, timeout_s: float = 0
    ) -> dict[str, Mover]:
        """Return one engine for all stores."""
        return dict.fromkeys(stores, TransferEngine(timeout_s=timeout_s))

    def lend_memory(self, nbytes: int) -> AbstractContextManager[int]:
        """Lend the address of memory that starts at a page."""
        return aligned_memory(nbytes)

    def enforce(self, budget_bytes: int) -> AbstractContextManager[None]:
        """Raise UsageError: nothing limits what torch takes of the CPU's memory."""
        msg = f"the CPU's allocator cannot be held to {format_bytes(budget_bytes)}"
        raise UsageError(msg, hint="leave out `--enforce`; the budget is accounted for here")

    def allocator(self) -> None:
        """Return None: torch does not count the CPU's memory."""

    def give_back_cached(self) -> None:
        """Do nothing: the allocator keeps nothing back."""

    def close(self) -> None:
        """Do nothing: nothing was taken."""


def open_device() -> Device:
    """Return the accelerator, or the CPU where there is none.

    Raises UsageError for an accelerator that is not CUDA's.
    """
    device = tracked_device()
    if device.type == "cpu":
        return CpuDevice(device)
    if device.type != "cuda":
        msg = f"`teraio run` cannot move memory of a `{device.type}` device yet"
        raise UsageError(msg, hint="hide it to train on the CPU")
    from teraio.executor.cuda import CudaDevice

    return CudaDevice()
