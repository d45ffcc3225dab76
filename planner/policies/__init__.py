"""The policies, all behind the one interface of `problem.Policy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from teraio.planner.policies.greedy import greedy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from teraio.planner.problem import Policy

POLICIES: Final[Mapping[str, Policy]] = {"greedy": greedy}
"""Each policy by the name it has on the command line."""

AUTO: Final = "greedy"
"""The policy that `auto` stands for."""
