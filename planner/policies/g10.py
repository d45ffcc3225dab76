"""G10's planner: the largest area over the budget first, in the order of its public code.

"G10: Enabling An Efficient Unified GPU Memory and Storage Architecture with Smart Tensor
Migrations", arXiv 2310.09443, section 4; code: `src/analysis.cc` of platformxlab/G10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from teraio.planner.plan import HOST, SSD
from teraio.planner.policies.ledger import Ledger
from teraio.planner.policies.lru import evicted_on_demand, on_demand_tier
from teraio.planner.problem import Answer
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.policies.ledger import Indices
    from teraio.planner.problem import Problem


def g10(problem: Problem) -> Answer:
    """Choose, round by round, the interval with the largest benefit, and leave the rest to LRU.

    The benefit is the tensor's size times the time of the ops over the budget between half of
    its offload and half of its prefetch, both at full speed; what is over by less than the size
    counts in full. An interval must be longer than offload, prefetch and half a transfer. The
    SSD is taken unless the offload there would end later than it ideally does, then host
    memory; those too short for the SSD go to host memory too. Prefetches start as late as the
    bandwidth that is left allows, then earlier where memory does. What is still over at run time
    is evicted and fetched on demand, as their unified memory does it.

    Different from the original: `fit_windows` lets offloads end as late as memory allows, and
    turns those that find a current copy into drops; tensors move whole; frees and allocations,
    which G10 plans too, are the trace's; the factors that its code has for single models
    (`loosen_parameter`) are left out. With over 1,000 intervals several are chosen a round
    (`ledger.ROUNDS`).

    Raises CannotFitError if the step does not fit with everything away that may move.
    """
    ledger = Ledger(problem)
    _choose(ledger)
    ledger.prefetch_earlier()
    over = ledger.memory.over[: ledger.n_ops].tolist()
    rest = [k for k in range(len(problem.intervals)) if k not in ledger.placed]
    faults = [Chosen(k, on_demand_tier(problem, k)) for k in evicted_on_demand(problem, over, rest)]
    return Answer(fit_windows(problem, [*ledger.chosen(), *faults]))


def _choose(ledger: Ledger) -> None:
    safe = {tier: _safe(ledger, tier) for tier in (SSD, HOST)}
    halves = {tier: _halves(ledger, tier) for tier in (SSD, HOST)}
    low, high = (np.where(safe[SSD], halves[SSD][k], halves[HOST][k]) for k in (0, 1))
    ideal = _ideal_ends(ledger)
    rows = np.flatnonzero((safe[SSD] | safe[HOST]) & (low < high))
    while len(rows) and ledger.memory.worst() > 0:
        pressure = ledger.pressure()
        area = ledger.size[rows].astype(np.float64) * (pressure[high[rows]] - pressure[low[rows]])
        rows, area = rows[area > 0], area[area > 0]
        best = rows[np.lexsort((rows, -area))[: ledger.batch]]
        for row in best.tolist():
            if ledger.memory.excess(int(low[row]), int(high[row])) is not None:
                end = int(ideal[row]) if safe[SSD][row] else None
                _place(ledger, row, end, host=bool(safe[HOST][row]))
        rows = rows[~np.isin(rows, best)]


def _place(ledger: Ledger, row: int, ideal: int | None, *, host: bool) -> None:
    """Place an interval where it can be; if nowhere, it is left to the run time.

    `ideal` is the op by which its offload to the SSD is done at best, None if it may not go there.
    """
    ssd = [] if ideal is None else [ledger.window(row, SSD)]
    windows = [window for window in ssd if ideal is not None and window.gone <= ideal]
    if host and ledger.host_fits(row):
        windows.append(ledger.window(row, HOST))
    possible = [window for window in [*windows, *ssd] if window.gone < window.start]
    if possible:
        ledger.place(row, possible[0])


def _ideal_ends(ledger: Ledger) -> Indices:
    """Return the op by whose start an SSD that does nothing else has each tensor."""
    starts = _starts(ledger)
    return np.searchsorted(starts, starts[ledger.first] + ledger.out_ns[SSD])


def _safe(ledger: Ledger, tier: str) -> NDArray[np.bool_]:
    """Return for each interval whether it is long enough to go to the tier and back."""
    starts = _starts(ledger)
    out_ns, in_ns = ledger.out_ns[tier], ledger.in_ns[tier]
    length = starts[ledger.end] - starts[ledger.first]
    safe: NDArray[np.bool_] = ledger.allowed[tier] & (length >= out_ns + in_ns + in_ns // 2)
    return safe


def _halves(ledger: Ledger, tier: str) -> tuple[Indices, Indices]:
    """Return the ops in which half of each tensor's bytes are gone, and the ones after those in
    which half are back.
    """
    starts = _starts(ledger)
    gone = starts[ledger.first] + ledger.out_ns[tier] // 2
    back = starts[ledger.end] - ledger.in_ns[tier] // 2
    return np.searchsorted(starts, gone, side="right") - 1, np.searchsorted(starts, back)


def _starts(ledger: Ledger) -> Indices:
    """Return when the op at each position of two steps starts, in ns, and when they end."""
    slots = ledger.problem.step.slots
    return np.concatenate([[0], np.cumsum(np.concatenate([slots, slots]))])
