"""A plan turned into what the replay looks up at each op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from teraio.planner.plan import HOST, Action, Offload, Plan, PlannedTensor, Program
from teraio.profiler.trace import GRANULE


@dataclass(frozen=True)
class Schedule:
    """Per op of the step: the bytes it needs on top, who is first seen there, what starts after.

    `signatures` is empty for a plan without actions that was made from an imported trace.
    """

    program: Program
    signatures: tuple[int, ...]
    needs: tuple[int, ...]
    binds: dict[int, list[PlannedTensor]]
    actions: dict[int, list[Action]]
    names: dict[int, str]
    kept_on_host: frozenset[int]
    """Tensors the plan drops later because host memory still has them."""
    quiet: frozenset[int]
    """Ops at which no tensor is first seen, nothing starts and nothing more is needed."""

    @property
    def ops(self) -> int:
        """The number of ops in the planned step."""
        return len(self.signatures)


def schedule_of(plan: Plan) -> Schedule:
    """Build the tables of a plan."""
    program = plan.trace.program
    binds: dict[int, list[PlannedTensor]] = {}
    for tensor in plan.tensors:
        binds.setdefault(tensor.first_op, []).append(tensor)
    actions: dict[int, list[Action]] = {}
    for action in plan.actions:
        actions.setdefault(action.after_op, []).append(action)
    granules = zip(program.new_granules, program.workspace_granules, strict=True)
    needs = tuple((new + workspace) * GRANULE for new, workspace in granules)
    busy = {op for op, need in enumerate(needs) if need} | binds.keys() | actions.keys()
    return Schedule(
        program=program,
        signatures=program.signature,
        needs=needs,
        binds=binds,
        actions=actions,
        names={tensor.id: tensor.name for tensor in plan.tensors},
        kept_on_host=frozenset(
            a.tensor
            for a in plan.actions
            if isinstance(a, Offload) and a.to == HOST and not a.write
        ),
        quiet=frozenset(range(len(needs))) - busy,
    )


NO_SCHEDULE: Final = Schedule(
    program=Program((), (), (), (), ()),
    signatures=(),
    needs=(),
    binds={},
    actions={},
    names={},
    kept_on_host=frozenset(),
    quiet=frozenset(),
)
"""That of a program without a plan, which is never followed."""
