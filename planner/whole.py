"""The program of `fluid` with whole tensors: an interval is used or not, in one tier.

Memory is relieved by tensors that are away as a whole, and what is used is moved as a whole;
only when bytes move stays fluid. So the least stall of this program, too, is one that no plan
beats, and at least that of the fluid. Tensors of one size that are idle at the same cuts are
counted together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from teraio.planner.absence import absences
from teraio.planner.attempt import Start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from teraio.planner.fluid import Fluid, Member, Moved
    from teraio.planner.lots import Lot
    from teraio.planner.plan import Action
    from teraio.planner.problem import Problem

_INF: Final = float("inf")

_TRAFFIC: Final = 2e-5
"""What it costs to use every interval, as a share of the ideal step: of all answers that stall
about as little, the one with the least traffic is wanted."""

_TOLERANCE: Final = 5e-5
"""A solver's bound is taken to be this share of the ideal step too high: HiGHS takes rows that
are off by 1e-7 for kept, and a step has up to some thousand of them."""


PROOF: Final = 2 * (_TRAFFIC + _TOLERANCE)
"""A plan that is this little above the bound, as a share of it, may be the program's best."""


class Count(NamedTuple):
    """One interval of a lot in one tier: how many of its tensors use it, and write in it.

    Both are numbers of variables; `writes` is None if nothing is ever written.
    """

    used: int
    writes: int | None


class Whole:
    """Adds whole numbers to a fluid program; `model` is the result."""

    def __init__(self, problem: Problem, fluid: Fluid) -> None:
        self._problem = problem
        self._fluid = fluid
        self._cost = _TRAFFIC * problem.step.period_ns / fluid.unit_ns
        self._cost /= max(1, sum(lot.size * len(lot.spans) for lot in fluid.lots))
        self._counts = [
            [self._count_in_tier(lot, moved) for moved in several]
            for lot, several in zip(fluid.lots, fluid.moved, strict=True)
        ]
        for lot, counts in zip(fluid.lots, self._counts, strict=True):
            self._in_one_tier(lot, counts)
        self.model = fluid.draft.model()

    def bound_ns(self, solver_bound: float) -> int:
        """Return ns of a step that no plan beats, from the solver's bound of the objective."""
        period = self._problem.step.period_ns
        stall = solver_bound * self._fluid.unit_ns - (_TRAFFIC + _TOLERANCE) * period
        return period + max(0, int(stall))

    def start(self, actions: Sequence[Action]) -> NDArray[np.float64]:
        """Return the whole numbers that stand for a plan; all else is NaN."""
        values = np.full(len(self.model.cost), np.nan)
        values[self.model.whole] = 0
        where, index, n_ops = self._where(), _index(self._problem), len(self._problem.step.ops)
        ops = self._fluid.cuts.events // 2
        for offload, prefetch in absences(actions):
            key = (index[offload.tensor, offload.after_op], offload.to)
            for count, member in where.get(key, ()):
                values[count.used] += 1
                if offload.write and count.writes not in (None, count.used):
                    values[count.writes] += 1
                at = ops[member.positions % len(ops)]
                length = (prefetch.after_op - offload.gone_by_op) % n_ops
                values[member.absent] += (at - offload.gone_by_op) % n_ops <= length
        return values

    def chosen(self, values: NDArray[np.float64]) -> list[Start]:
        """Return the intervals that the solver's values use, and when their tensors are away."""
        return [
            one
            for lot, several, counts in zip(
                self._fluid.lots, self._fluid.moved, self._counts, strict=True
            )
            for tier, (moved, of_tier) in enumerate(zip(several, counts, strict=True))
            for k, (member, count) in enumerate(zip(moved.members, of_tier, strict=True))
            for one in self._starts(lot, moved.tier, k, member, values, count, from_end=tier > 0)
        ]

    def _count_in_tier(self, lot: Lot, moved: Moved) -> list[Count]:
        draft, copies = self._fluid.draft, len(lot.copies)
        size = lot.size / copies / self._fluid.unit_bytes
        cost = self._cost * lot.size / copies
        counts = []
        for member in moved.members:
            used = int(draft.columns(1, copies, cost=cost, whole=True)[0])
            self._makes(member.reads, used, size)
            writes = None
            if not lot.clean:
                writes = used
                if len(moved.members) > 1:
                    writes = int(draft.columns(1, copies, cost=cost, whole=True)[0])
                    row = draft.rows(-_INF, 0.0)
                    draft.put(row, [writes, used], [1.0, -1.0])
                self._makes(member.writes, writes, size)
            counts.append(Count(used, writes))
        return counts

    def _makes(self, flows: NDArray[np.int64], count: int, size: float) -> None:
        """Make the bytes of all windows together those of `count` tensors."""
        row = self._fluid.draft.rows(0.0, 0.0)
        self._fluid.draft.put(row, flows, 1.0)
        self._fluid.draft.put(row, count, -size)

    def _in_one_tier(self, lot: Lot, counts: Sequence[Sequence[Count]]) -> None:
        if len(counts) > 1:
            for several in zip(*counts, strict=True):
                row = self._fluid.draft.rows(-_INF, float(len(lot.copies)))
                self._fluid.draft.put(row, [count.used for count in several], 1.0)

    def _where(self) -> dict[tuple[int, str], list[tuple[Count, Member]]]:
        """Return the variables of each (interval, tier)."""
        found: dict[tuple[int, str], list[tuple[Count, Member]]] = {}
        for lot, several, counts in zip(
            self._fluid.lots, self._fluid.moved, self._counts, strict=True
        ):
            for moved, of_tier in zip(several, counts, strict=True):
                tiers = lot.tiers if len(several) == 1 else (moved.tier,)
                for copies in lot.copies:
                    variables = zip(of_tier, moved.members, strict=True)
                    for index, there in zip(copies, variables, strict=True):
                        for tier in tiers:
                            found.setdefault((index, tier), []).append(there)
        return found

    def _starts(
        self,
        lot: Lot,
        tier: str,
        k: int,
        member: Member,
        values: NDArray[np.float64],
        count: Count,
        *,
        from_end: bool,
    ) -> Iterator[Start]:
        used = round(float(values[count.used]))
        copies = lot.copies[len(lot.copies) - used :] if from_end else lot.copies[:used]
        for number, of_family in enumerate(copies):
            there = values[member.absent] >= number + 0.5
            yield self._started(of_family[k], tier, member.positions[there])

    def _started(self, index: int, tier: str, positions: NDArray[np.int64]) -> Start:
        """Return that interval `index` is away at the cuts at `positions`; without any, halfway,
        which is enough to make a copy.
        """
        _, after, needed = self._problem.intervals[index]
        if not len(positions):
            halfway = (after + needed) // 2
            return Start(index, tier, halfway, halfway)
        cuts, n_ops = self._fluid.cuts, len(self._problem.step.ops)
        ops = cuts.events[positions[[0, -1]] % len(cuts.events)] // 2
        gone, back = (after + 1 + (ops - after - 1) % n_ops).tolist()
        return Start(index, tier, gone, back)


def _index(problem: Problem) -> dict[tuple[int, int], int]:
    return {
        (problem.step.tensors[interval.tensor].id, interval.after_op): k
        for k, interval in enumerate(problem.intervals)
    }
