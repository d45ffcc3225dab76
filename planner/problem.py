"""What a policy is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from teraio.planner.copies import families
from teraio.planner.plan import HOST, SSD
from teraio.profiler.errors import InfeasibleError

if TYPE_CHECKING:
    from teraio.planner.copies import Place
    from teraio.planner.plan import Action, Hardware
    from teraio.planner.step import Interval, Step


@dataclass(frozen=True)
class Problem:
    """Choose among `intervals` so that `step` fits `planned_bytes` of device memory.

    At most `host_bytes` of host memory may hold copies. With `ssd` false nothing goes to the
    SSD, and the tensors `never_ssd` (indices into `Step.tensors`) do not either way. A step may
    write at most `ssd_write_bytes` to the SSD; None sets no limit. A policy with a solver answers
    with the best that it has found after `time_limit_s` seconds.
    """

    step: Step
    intervals: tuple[Interval, ...]
    planned_bytes: int
    host_bytes: int
    hardware: Hardware
    ssd: bool = True
    never_ssd: frozenset[int] = frozenset()
    ssd_write_bytes: int | None = None
    time_limit_s: float = 60.0

    @cached_property
    def all_tiers(self) -> tuple[str, ...]:
        """The tiers that may hold a copy of some tensor, in the order of preference."""
        may = {SSD: self.ssd, HOST: self.host_bytes > 0}
        return tuple(tier for tier in may if may[tier])

    @cached_property
    def places(self) -> list[Place]:
        """The place of each interval among those that share a copy."""
        return families(self.step, self.intervals)

    def tiers(self, tensor: int) -> tuple[str, ...]:
        """Return the tiers that may hold a copy of `tensor`, in the order of preference."""
        ruled_out = SSD if tensor in self.never_ssd else None
        return tuple(tier for tier in self.all_tiers if tier != ruled_out)


@dataclass(frozen=True)
class Answer:
    """What a policy decided, and how it got there (see `plan.Policy`).

    `policy` names the policy whose answer it is, if that is another than the one asked, and
    `bound_ns` is a lower bound on the step time that the policy has proven, if it has.
    """

    actions: tuple[Action, ...]
    solver: str = ""
    status: str = ""
    gap: float | None = None
    policy: str = ""
    bound_ns: int | None = None


class CannotFitError(InfeasibleError):
    """A policy found no way to fit the step into its budget; another one may."""


Policy = Callable[[Problem], Answer]
"""Answers with actions under which the step fits, or raises CannotFitError."""
