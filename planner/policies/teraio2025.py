"""TERAIO's Algorithm 1 as published, and what its code does when that is not enough.

"Cost-Efficient LLM Training with Lifetime-Aware Tensor Offloading via GPUDirect Storage", arXiv
2506.06472, Algorithm 1; code: `scheduling_prefetch` in `src/analysis.cc` of
HieronZhang/G10-Artifact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.plan import HOST, SSD
from teraio.planner.policies.ledger import Ledger, Window
from teraio.planner.problem import Answer
from teraio.planner.windows import fit_windows

if TYPE_CHECKING:
    from teraio.planner.policies.ledger import Indices
    from teraio.planner.problem import Problem

_LEAST_BYTES: Final = 2_000_000
_LEAST_FORCED_BYTES: Final = 32 << 10
_SATURATED_OPS: Final = 10
_FORCED_BATCHES: Final = 5


def teraio2025(problem: Problem) -> Answer:
    """Choose, round by round, the interval with the largest benefit for its cost.

    The benefit is the tensor's size times the time of the ops over the budget from the end of
    its offload to the start of its prefetch, in the bandwidth that is left; divided by the size,
    as the listing does, that time alone ranks (the larger tensor first where it is equal). What
    is over by less than the size counts in full. The SSD comes first, host memory where the
    SSD could not begin for 10 ops. Prefetches then start earlier where memory allows; and if
    memory is still over, further intervals are used without regard to bandwidth, those with the
    largest area over the budget first, offloaded at once and fetched by the op that needs them.

    Different from the original: `fit_windows` lets offloads end as late as memory allows, and
    turns those that find a current copy into drops; the code's rule against too many bytes in
    flight (90 % of the target) and its ordering by raw area, which is no order, are left out;
    the listing's is kept. With over 1,000 intervals several are chosen a round
    (`ledger.ROUNDS`), as in the code. Tensors under 2,000,000 bytes (32 KiB if forced) stay.

    Raises CannotFitError if the step does not fit without those.
    """
    ledger = Ledger(problem)
    _choose(ledger)
    ledger.prefetch_earlier()
    _force(ledger)
    return Answer(fit_windows(problem, ledger.chosen()))


def _choose(ledger: Ledger) -> None:
    rows = np.flatnonzero(ledger.nbytes >= _LEAST_BYTES)
    while len(rows) and ledger.memory.worst() > 0:
        relieved = _relieved_ns(ledger, rows)
        rows, relieved = rows[relieved > 0], relieved[relieved > 0]
        best = rows[np.lexsort((rows, -ledger.size[rows], -relieved))[: ledger.batch]]
        for row in best.tolist():
            _place(ledger, row)
        rows = rows[~np.isin(rows, list(ledger.placed))]


def _relieved_ns(ledger: Ledger, rows: Indices) -> Indices:
    """Return the time of the ops over the budget that each interval would relieve."""
    gone, start = ledger.windows(rows, SSD)
    if ledger.problem.host_bytes:
        host_gone, host_start = ledger.windows(rows, HOST)
        saturated = (start <= gone) | ledger.waits(rows, SSD, _SATURATED_OPS)
        host = saturated & (host_gone < host_start)
        gone, start = np.where(host, host_gone, gone), np.where(host, host_start, start)
    pressure = ledger.pressure()
    return np.where(gone < start, pressure[start] - pressure[gone], 0)


def _place(ledger: Ledger, row: int) -> None:
    """Place an interval if it still relieves; without room in host memory it must wait."""
    window = ledger.window(row, SSD)
    if window.start <= window.gone or ledger.wait(row, SSD, _SATURATED_OPS):
        host = ledger.window(row, HOST)
        window = host if host.gone < host.start else window
    if window.start <= window.gone or not ledger.memory.excess(window.gone, window.start):
        return
    if window.tier == HOST and not ledger.host_fits(row):
        ledger.allowed[HOST][row] = False
    else:
        ledger.place(row, window)


def _force(ledger: Ledger) -> None:
    rows = np.flatnonzero(ledger.nbytes >= _LEAST_FORCED_BYTES)
    while ledger.memory.worst() > 0:
        movable = ledger.allowed[SSD] | ledger.allowed[HOST]
        rows = rows[movable[rows] & ~np.isin(rows, list(ledger.placed))]
        pressure = ledger.pressure()
        relieved = pressure[ledger.end[rows]] - pressure[ledger.first[rows]]
        area = ledger.size[rows].astype(np.float64) * relieved
        rows, area = rows[area > 0], area[area > 0]
        if not len(rows):
            break
        for row in rows[np.lexsort((rows, -area))[: _FORCED_BATCHES * ledger.batch]].tolist():
            _force_one(ledger, row)


def _force_one(ledger: Ledger, row: int) -> None:
    first, end = int(ledger.first[row]), int(ledger.end[row])
    if ledger.memory.excess(first, end) is None:
        return
    if ledger.allowed[HOST][row] and ledger.host_fits(row):
        ledger.force(row, Window(HOST, first, end))
    elif ledger.allowed[SSD][row]:
        ledger.force(row, Window(SSD, first, end))
    else:
        ledger.allowed[HOST][row] = False
