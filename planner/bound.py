"""A proven lower bound on the step time of any plan."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import TYPE_CHECKING, Final

from teraio.planner.cuts import choose_cuts
from teraio.planner.draft import proven_least
from teraio.planner.fluid import Fluid, variables
from teraio.planner.lots import Movable
from teraio.planner.solver import solve
from teraio.planner.step import peak
from teraio.profiler.errors import SolverMissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.problem import Problem

_VARIABLES: Final = 8_000
"""The fluid is looked at in so many instants that its program has at most about this many
variables. For BERT-256 and ViT-1024 in 20 GiB that takes 0.3 to 1 s, and 2 to 4 times as many
variables raised the bound by 4 % of the ideal step at most, in 2 to 19 s."""

_CUTS: Final = 48
_MOST_CUTS: Final = 256
_TRIES: Final = 4
_ENOUGH, _AIM = 0.6, 0.9
"""Cuts tried first and at most, and how often other numbers are tried until the variables are
at least the share `_ENOUGH` of those allowed; each time the share `_AIM` is aimed at."""


def lower_bound_ns(problem: Problem, *, known_ns: int | None = None) -> int:
    """Return ns that no plan for `problem` can beat, taken in a steady run.

    That is the larger of two: the step with the channels never idle while they have to read
    back what does not fit, and that of `fluid`. Without a solver it is the first one. The
    search ends, and the answer is `known_ns`, once the bound reaches that: what a plan takes.
    """
    least = _simple_ns(problem)
    if known_ns is None or least < known_ns:
        least = max(least, _fluid_ns(problem))
    return least if known_ns is None else min(least, known_ns)


def _simple_ns(problem: Problem) -> int:
    """Return the least ns of a step that are certain without a solver.

    A steady step takes at least the ideal time, as its ops run one after the other. Let E be
    how far the op with the largest demand is over the budget. At that op, storages that take E
    or more bytes are absent, and each of them is read back before its next use: once a step,
    as steps repeat. Of a storage's bytes on the device at least the share r is read, r being
    the least share of its allocated size that a movable storage fills. All of it passes the
    host link, and what is on the SSD can be read no faster than that. So the step also takes at
    least r E divided by the rate of the link, or of the SSD where that is the only tier.
    """
    step = problem.step
    excess = peak(step) - problem.planned_bytes
    tensors = {interval.tensor for interval in problem.intervals}
    if excess <= 0 or not tensors:
        return step.period_ns
    filled = min(Fraction(step.tensors[t].nbytes, step.tensors[t].size) for t in tensors)
    rate = problem.hardware.host_link.to_gpu_bytes_per_s
    if not problem.host_bytes:
        rate = min(rate, problem.hardware.ssd.read_bytes_per_s)
    return max(step.period_ns, int(excess * filled * 10**9 / rate))


def _fluid_ns(problem: Problem) -> int:
    """Return what the fluid proves, from the program's multipliers; see `proven_least`."""
    period = problem.step.period_ns
    if peak(problem.step) <= problem.planned_bytes or not problem.intervals:
        return period
    fluid = sized_fluid(problem)
    model = fluid.draft.model()
    try:
        found = solve(model)
    except SolverMissingError:
        return period
    if found.duals is None:
        return period
    return period + int(proven_least(model, found.duals) * fluid.unit_ns * (1 - 2**-50))


def sized_fluid(
    problem: Problem,
    *,
    by_size: bool = False,
    whole: bool = False,
    most_variables: int = _VARIABLES,
    at: Sequence[int] = (),
) -> Fluid:
    """Return the program with as many cuts as give it about the variables allowed, or fewer.

    With `by_size` only tensors of the same size are taken together, and with `whole` too, and
    then only whole tensors relieve memory. There are cuts at the ops `at` in any case.
    """
    movable, n_cuts = Movable(problem), _CUTS
    most = min(_MOST_CUTS, 2 * len(problem.step.ops))
    kept, kept_share = None, float("inf")
    for _ in range(_TRIES):
        cuts = choose_cuts(problem, n_cuts, at)
        lots = movable.lots(cuts, by_size=by_size or whole)
        share = variables(cuts, lots, problem) / most_variables
        if share <= 1 or share < kept_share:
            kept, kept_share = (cuts, lots), share
        if _ENOUGH <= share <= 1 or (share <= 1 and n_cuts >= most):
            break
        n_cuts = max(2, min(int(n_cuts * sqrt(_AIM / share)), _MOST_CUTS))
    assert kept is not None
    return Fluid(problem, *kept, whole=whole)
