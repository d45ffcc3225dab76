"""The integer program: which intervals are used, so that the step stalls least.

The program (`planner.whole`) is that of the lower bound with whole tensors, as in TERAIO's and
others' formulations, but over cuts of the step instead of all ops; so its bound holds for every
plan. What it chooses gets windows, and is improved on, as the greedy policy's choice is. It is
solved without whole numbers first, for this budget and for smaller ones, which leave room for
tensors on their way, and rounded; then with them, over more and more cuts as far as the time
allows. The simulator picks the fastest of all and of what `auto` found.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.absence import planned_peak
from teraio.planner.attempt import LONG, work
from teraio.planner.bound import lower_bound_ns, sized_fluid
from teraio.planner.minimum import least_memory
from teraio.planner.policies.auto import auto
from teraio.planner.problem import Answer
from teraio.planner.search import Search
from teraio.planner.simulate import simulate_actions
from teraio.planner.solver import solve, solvers
from teraio.planner.whole import PROOF, Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.attempt import Start
    from teraio.planner.fluid import Fluid
    from teraio.planner.problem import Problem

NO_SOLVER: Final = "no solver is installed"
"""How the status of an answer begins that was found without a solver."""

_ROUNDS: Final = tuple(product((8_000, 4_000, 16_000), (0.0, 1.0, 2.0, 0.5)))
"""The programs that are rounded: with about how many variables, and for how much less memory, in
tensors of the largest size. Which gives the best plan is chance: of those tried on four steps of
BERT and ViT, the stalls were up to 0.2 of the ideal step apart, and each was the best of one."""

_FINER: Final = (4_000, 8_000, 16_000, 32_000, 64_000)
"""About how many variables the programs have that are solved with whole numbers, one after the
other: more cuts may prove more."""

_AT: Final = 16
"""These programs look at so many of the ops that the best plan waits for longest. A convolutional
net in the least memory waits for 8 ops: with cuts there its plan was proven to be within 0.16 % of
the best in 60 s, and without them within 0.60 % in 300 s."""

_ROUNDING, _SOLVING = 0.5, 0.85
"""The shares of the time after which no program is rounded any more, and the solver stops."""

_GAP: Final = 1e-6
"""A plan so little above the lower bound reaches it: the bound's proof is rounded down."""


def ilp(problem: Problem) -> Answer:
    """Return the fastest plan found in the time limit, and how far from the best it can be.

    Without a solver that is the one of `auto`, with a status that begins with `NO_SOLVER`.
    """
    started = time.perf_counter()
    known = auto(problem)
    if not solvers():
        return replace(known, policy="", status=f"{NO_SOLVER}: the plan is that of {known.policy}")
    hunt = _Hunt(problem, known, started)
    if not hunt.done():
        hunt.round_programs()
        hunt.improve()
    if not hunt.done():
        hunt.solve_whole()
    return hunt.answer()


class _Hunt:
    """The best plan so far, the best bound, and the time that is left."""

    def __init__(self, problem: Problem, known: Answer, started: float) -> None:
        self._problem = problem
        self._started = started
        self._known, self._actions = known, known.actions
        self._step_ns = simulate_actions(problem.step, problem.hardware, known.actions).step_ns
        self._fits = planned_peak(problem.step, known.actions) <= problem.planned_bytes
        self._bound_ns = lower_bound_ns(problem, known_ns=self._step_ns if self._fits else None)
        self._search = Search(problem)
        self._solver, self._ended = known.solver, ""

    def done(self) -> bool:
        """Tell whether nothing is left to find."""
        return self._fits and self._gap() <= _GAP

    def round_programs(self) -> None:
        """Try what the programs without whole numbers choose, rounded."""
        least = least_memory(self._problem.step, self._problem.intervals).nbytes
        largest = max(self._problem.step.tensors[i.tensor].size for i in self._problem.intervals)
        seen = set()
        for most_variables, tensors in _ROUNDS if work(self._problem) <= LONG else _ROUNDS[:1]:
            if self._left_s(_ROUNDING) <= 0 or self.done():
                return
            memory = max(least, self._problem.planned_bytes - int(tensors * largest))
            fluid, whole = _program(replace(self._problem, planned_bytes=memory), most_variables)
            if (memory, len(fluid.cuts.events)) in seen:
                continue
            seen.add((memory, len(fluid.cuts.events)))
            relaxed = replace(whole.model, whole=np.zeros_like(whole.model.whole))
            found = solve(relaxed, time_limit_s=self._left_s(_SOLVING))
            self._solver = found.solver
            if found.values is not None:
                rounded = np.where(whole.model.whole, np.rint(found.values), found.values)
                self._try(fluid, whole, rounded)

    def improve(self) -> None:
        """Improve on the best plan that these programs gave."""
        if self._search.has_begun and self._left_s(_SOLVING) > 0:
            self._search.stretch()
            self._search.exchange()
            self._keep()

    def solve_whole(self) -> None:
        """Solve the program with whole numbers, with more and more cuts as long as it is solved.

        Each begins with the best plan so far.
        """
        cuts = 0
        for most_variables in _FINER:
            if self._left_s(_SOLVING) <= 0 or self.done():
                return
            fluid, whole = _program(self._problem, most_variables, self._waited_for())
            if len(fluid.cuts.events) <= cuts:
                return
            cuts = len(fluid.cuts.events)
            self._solve(fluid, whole)
            if self._ended != "optimal":
                return

    def _waited_for(self) -> list[int]:
        problem = self._problem
        waits = simulate_actions(problem.step, problem.hardware, self._actions).waits
        return [op for op, _ in sorted(waits, key=lambda wait: -wait[1])[:_AT]]

    def _solve(self, fluid: Fluid, whole: Whole) -> None:
        start = whole.start(self._actions)
        found = solve(whole.model, time_limit_s=self._left_s(_SOLVING), start=start)
        self._solver, self._ended = found.solver, found.status
        if found.bound is not None:
            proven_ns = whole.bound_ns(found.bound)
            proven_ns = min(proven_ns, self._step_ns) if self._fits else proven_ns
            self._bound_ns = max(self._bound_ns, proven_ns)
        if found.values is not None:
            self._try(fluid, whole, found.values)

    def answer(self) -> Answer:
        """Return the best plan with what is proven of it."""
        return Answer(
            self._actions, self._solver, self._status(), self._gap(), bound_ns=self._bound_ns
        )

    def _try(self, fluid: Fluid, whole: Whole, values: NDArray[np.float64]) -> None:
        """Begin with the intervals that `values` choose: away when the values say, with and
        without the time that the fluid waits, and as long as they can be.
        """
        chosen = whole.chosen(values)
        self._search.begin(chosen, fluid.waits(values))
        self._search.begin(chosen)
        self._search.begin([self._long(one) for one in chosen])
        self._keep()

    def _long(self, start: Start) -> Start:
        _, after, needed = self._problem.intervals[start.interval]
        return start._replace(gone=after + 1, back=needed - 1)

    def _keep(self) -> None:
        best = self._search.best
        if best.fits and (not self._fits or best.simulation.step_ns < self._step_ns):
            self._step_ns, self._actions = best.simulation.step_ns, best.actions
            self._fits = True

    def _left_s(self, share: float) -> float:
        """Return the seconds that are left of that share of the time."""
        return self._started + share * self._problem.time_limit_s - time.perf_counter()

    def _gap(self) -> float:
        return self._step_ns / self._bound_ns - 1

    def _status(self) -> str:
        if self.done():
            return "gap closed: no plan is faster"
        if self._fits and self._gap() <= PROOF:
            return f"gap closed: no plan is more than {self._gap():.4%} faster"
        status = f"gap not closed: at most {self._gap():.2%} above the fastest possible"
        status += f" ({self._end()})"
        if self._actions is self._known.actions:
            status += f"; {self._known.policy} kept: the simulator finds it faster"
        return status

    def _end(self) -> str:
        """Return why nothing more was tried."""
        if self._ended in ("infeasible", "unbounded", "failed"):
            return f"the solver says {self._ended}"
        if self._ended == "optimal" and self._left_s(_SOLVING) > 0:
            return "the program is solved: more time does not help"
        without = ", nothing found" if self._ended == "no solution" else ""
        return f"time limit of {self._problem.time_limit_s:g} s{without}"


def _program(problem: Problem, most_variables: int, at: Sequence[int] = ()) -> tuple[Fluid, Whole]:
    fluid = sized_fluid(problem, whole=True, most_variables=most_variables, at=at)
    return fluid, Whole(problem, fluid)
