"""The policies, all behind the one interface of `problem.Policy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from teraio.planner.policies.auto import auto
from teraio.planner.policies.flexgen import flexgen
from teraio.planner.policies.fluid import fluid
from teraio.planner.policies.g10 import g10
from teraio.planner.policies.greedy import greedy
from teraio.planner.policies.ilp import ilp
from teraio.planner.policies.keep import keep
from teraio.planner.policies.lru import lru
from teraio.planner.policies.ssdtrain import ssdtrain
from teraio.planner.policies.teraio2025 import teraio2025
from teraio.planner.policies.zero_infinity import zero_infinity
from teraio.planner.policies.zero_offload import zero_offload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from teraio.planner.problem import Policy

POLICIES: Final[Mapping[str, Policy]] = {
    "greedy": greedy,
    "fluid": fluid,
    "ilp": ilp,
    "teraio2025": teraio2025,
    "g10": g10,
    "zero-offload": zero_offload,
    "zero-infinity": zero_infinity,
    "ssdtrain": ssdtrain,
    "flexgen": flexgen,
    "lru": lru,
    "keep": keep,
}
"""Each policy by the name it has on the command line."""

AUTO: Final = "auto"
"""The name under which `policies.auto` chooses among several of these."""


def policy_named(name: str) -> Policy:
    """Return the policy of that name; raises KeyError if there is none."""
    return auto if name == AUTO else POLICIES[name]
