"""The fluid policy: what the program of the lower bound moves, in whole tensors.

The program (`planner.fluid`) says how much of tensors that are idle at the same times is away
when, if any part could move at any time, so that the step stalls least. Of each such lot as many
whole tensors are taken, the largest first, each away while the part of the lot that it stands
for is. What that lacks of the budget, as tensors are not fluid, the greedy policy adds; windows
are set and the plan improved as it does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.attempt import LONG, Start, work
from teraio.planner.bound import sized_fluid
from teraio.planner.problem import Answer
from teraio.planner.search import Search
from teraio.planner.solver import solve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from teraio.planner.cuts import Cuts
    from teraio.planner.fluid import Fluid, Member
    from teraio.planner.problem import Problem
    from teraio.planner.solver import Model

_TRAFFIC: Final = 1e-4
"""The cost of moving a hundredth of the largest excess, in hundredths of the ideal step."""

_COARSE: Final = 4_000
_FINE: Final = 20_000
"""The variables of the programs. Which of the two gives the better plan differs: on 11 problems of
six steps, the first plans of the finer one were 7.3 % shorter to 2.3 % longer."""


def fluid(problem: Problem) -> Answer:
    """Choose what the fluid moves, and improve on it.

    Raises SolverMissingError where there is no solver.
    """
    search = Search(problem)
    coarse = sized_fluid(problem, most_variables=_COARSE)
    solver = _begin(search, problem, coarse)
    if work(problem) <= LONG:
        _begin(search, problem, sized_fluid(problem, most_variables=_FINE, by_size=True))
    search.stretch()
    search.exchange()
    return Answer(search.best.actions, solver=solver)


def _begin(search: Search, problem: Problem, program: Fluid) -> str:
    """Begin the search with what `program` moves; return the solver's name."""
    found = solve(_with_least_traffic(program))
    if found.values is None:
        search.begin()
    else:
        start = list(_whole_tensors(problem, program, found.values))
        search.begin(start, program.waits(found.values))
        if work(problem) <= LONG:
            search.begin(start)
    return found.solver


def _with_least_traffic(program: Fluid) -> Model:
    """Return the program, but of all that stall about as little that with the least traffic."""
    model = program.draft.model()
    cost = model.cost.copy()
    for several in program.moved:
        for moved in several:
            for member in moved.members:
                cost[member.reads] += _TRAFFIC
                cost[member.writes] += _TRAFFIC
    return replace(model, cost=cost)


def _whole_tensors(
    problem: Problem, program: Fluid, values: NDArray[np.float64]
) -> Iterator[Start]:
    sizes = [problem.step.tensors[interval.tensor].size for interval in problem.intervals]
    for lot, several in zip(program.lots, program.moved, strict=True):
        families = sorted(lot.copies, key=lambda copies: -sizes[copies[0]])
        for moved in several:
            taken = 0.0
            for copies in list(families):
                size = sizes[copies[0]] / program.unit_bytes
                share = taken + size / 2
                away = [member.positions[values[member.away] >= share] for member in moved.members]
                if not any(len(part) for part in away):
                    continue
                families.remove(copies)
                taken += size
                writer, written = _written(moved.members, values, share)
                if writer is not None and not len(away[writer]):
                    away[writer] = written
                for index, part in zip(copies, away, strict=True):
                    if len(part):
                        yield _started(problem, program.cuts, index, moved.tier, part)


def _written(
    members: Sequence[Member], values: NDArray[np.float64], share: float
) -> tuple[int | None, NDArray[np.int64]]:
    """Return the member in which the copy of `share` is written, and the cut by which it is."""
    done = 0.0
    for k, member in enumerate(members):
        writes = done + np.cumsum(values[member.writes])
        if len(writes) and writes[-1] >= share:
            return k, member.write_windows[[int(writes.searchsorted(share))]] + 1
        done = float(writes[-1]) if len(writes) else done
    return None, np.zeros(0, dtype=np.int64)


def _started(
    problem: Problem, cuts: Cuts, index: int, tier: str, positions: NDArray[np.int64]
) -> Start:
    """Return that interval `index` is away at the ops of the cuts at `positions`."""
    n_ops, after = len(problem.step.ops), problem.intervals[index].after_op
    ops = cuts.events[positions % len(cuts.events)] // 2
    ops = after + 1 + (ops - after - 1) % n_ops
    return Start(index, tier, int(ops[0]), int(ops[-1]))
