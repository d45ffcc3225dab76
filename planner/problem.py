"""What a policy is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teraio.planner.plan import Action, Hardware
    from teraio.planner.step import Interval, Step


@dataclass(frozen=True)
class Problem:
    """Choose among `intervals` so that `step` fits `planned_bytes` of device memory.

    At most `host_bytes` of host memory may hold copies.
    """

    step: Step
    intervals: tuple[Interval, ...]
    planned_bytes: int
    host_bytes: int
    hardware: Hardware


@dataclass(frozen=True)
class Answer:
    """What a policy decided, and how it got there (see `plan.Policy`)."""

    actions: tuple[Action, ...]
    solver: str = ""
    status: str = ""
    gap: float | None = None


Policy = Callable[[Problem], Answer]
