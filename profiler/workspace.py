"""How much memory an op uses only while it runs, from the allocator's own events."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch.autograd.profiler import profile

_MARK = "teraio op "


class WorkspaceMeter(Protocol):
    """Measures ops one at a time; `bytes_by_op` is asked once, after the last."""

    def start(self, key: int) -> None:
        """An op is about to run."""

    def stop(self, new_bytes: int) -> None:
        """It has run, and `new_bytes` of it live on in new storages."""

    def bytes_by_op(self) -> dict[int, int]:
        """Return the workspace of each key in bytes."""


class AllocatorEventMeter:
    """For the CPU: torch's profiler reports each allocation; replayed op by op afterwards."""

    def __init__(self) -> None:
        self._profile = cast("Any", profile(use_cpu=True, profile_memory=True))
        self._keys: list[int] = []
        self._new_bytes: list[int] = []
        self._range: Any = None
        self._profile.__enter__()

    def start(self, key: int) -> None:
        """Open a named range in the profile."""
        self._range = torch._C._profiler._RecordFunctionFast(f"{_MARK}{len(self._keys)}")
        self._keys.append(key)
        self._range.__enter__()

    def stop(self, new_bytes: int) -> None:
        """Close the range."""
        self._range.__exit__(None, None, None)
        self._new_bytes.append(new_bytes)

    def bytes_by_op(self) -> dict[int, int]:
        """Replay the allocations of each range and return the largest extra of each key."""
        self._profile.__exit__(None, None, None)
        workspace: dict[int, int] = {}
        number, end, held, most = -1, -1, 0, 0
        for event in self._profile.kineto_results.events():
            if event.name().startswith(_MARK):
                number, held, most = int(event.name().removeprefix(_MARK)), 0, 0
                end = event.start_ns() + event.duration_ns()
            elif event.name() == "[memory]" and event.start_ns() <= end:
                held += event.nbytes()
                most = max(most, held)
                if number < len(self._new_bytes):
                    key, extra = self._keys[number], most - self._new_bytes[number]
                    workspace[key] = max(workspace.get(key, 0), extra, 0)
        return workspace


class PeakMeter:
    """For an accelerator: its caching allocator keeps the peak."""

    def __init__(self) -> None:
        self._workspace: dict[int, int] = {}
        self._key, self._before = 0, 0

    def start(self, key: int) -> None:
        """Reset the peak."""
        self._key = key
        torch.accelerator.reset_peak_memory_stats()
        self._before = torch.accelerator.memory_allocated()

    def stop(self, new_bytes: int) -> None:
        """Read the peak."""
        extra = torch.accelerator.max_memory_allocated() - self._before - new_bytes
        self._workspace[self._key] = max(self._workspace.get(self._key, 0), extra, 0)

    def bytes_by_op(self) -> dict[int, int]:
        """Return the largest extra of each key."""
        return self._workspace


def meter_for(device: torch.device) -> WorkspaceMeter | None:
    """Return a started meter for a device.

    None while the program itself runs torch's profiler, of which there is one only.
    """
    if device.type != "cpu":
        return PeakMeter()
    return None if torch._C._autograd._profiler_enabled() else AllocatorEventMeter()
