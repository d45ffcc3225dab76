"""When ops start and end: the host's clock, or events on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments; `resolve` turns the marks of a step into ns since the first of them.

    `is_hosts`: what the host does between two marks lies between them.
    """

    is_hosts: bool

    def mark(self, host_ns: int) -> Any:
        """Mark this moment in the work of the device; the host's clock reads `host_ns`."""

    def resolve(self, marks: Sequence[Any]) -> list[int]:
        """Return ns from the first mark to each."""


class HostClock:
    """For the CPU as the device: an op has ended when its call returns."""

    is_hosts = True

    def mark(self, host_ns: int) -> int:
        """Return the host time."""
        return host_ns

    def resolve(self, marks: Sequence[int]) -> list[int]:
        """Return ns from the first mark to each."""
        return [mark - marks[0] for mark in marks]


class DeviceClock:
    """For an accelerator: events in its current stream, read once the step is over."""

    is_hosts = False

    def mark(self, host_ns: int) -> torch.Event:
        """Record an event in the current stream."""
        event = torch.Event(enable_timing=True)
        event.record()
        return event

    def resolve(self, marks: Sequence[torch.Event]) -> list[int]:
        """Wait for the last mark and return ns from the first mark to each."""
        torch.accelerator.synchronize()
        return [round(marks[0].elapsed_time(mark) * 1e6) for mark in marks]


def clock_for(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return HostClock() if device.type == "cpu" else DeviceClock()
