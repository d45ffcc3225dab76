"""FlexGen: a linear program finds what share of each kind of tensor lives where.

"FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU", arXiv
2303.06865, section 4.3; code: `experimental/cost_model.py` of FMInference/FlexGen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.bandwidth import transfer_ns
from teraio.planner.minimum import absent_bytes
from teraio.planner.plan import HOST, SSD
from teraio.planner.policies.in_order import issues_in_order
from teraio.planner.problem import Answer, CannotFitError
from teraio.planner.solver import Model, solve
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from teraio.planner.plan import Action
    from teraio.planner.problem import Problem
    from teraio.planner.solver import Solution

_CLASSES: Final = ("parameter", "gradient", "optimizer_state", "activation", "other")
_TIERS: Final = (SSD, HOST)
_ROUNDS: Final = 20
_HAIR: Final = 1e-6
"""Fractions that differ by less are the same: a solver keeps to its rows within about this."""


@dataclass(frozen=True)
class _Classes:
    """The program's data: a row for each op over the budget, a column for each class.

    `away` are the bytes that a class can take away there, `lacking` what has to be away; the
    times are ns of each channel if all of a class used that tier.
    """

    intervals: tuple[tuple[int, ...], ...]
    away: NDArray[np.float64]
    lacking: NDArray[np.float64]
    out_ns: NDArray[np.float64]
    in_ns: NDArray[np.float64]
    written: NDArray[np.float64]


def flexgen(problem: Problem) -> Answer:
    """Share the classes of tensors out among device, host and SSD, for the least step time.

    The time is the largest of the ops' and of each channel's; the ops that are over the budget
    need enough away. A fraction of a class is its largest tensors, those for the SSD first.
    Prefetches start in the order of need, as late as all are in time.

    Different from the original: the classes are those of training (parameters, gradients,
    optimizer states, activations, others) where inference has weights, cache and activations;
    there is no batch or block size to search for; channel rates are those of the hardware
    file, not fitted; memory must suffice at every op and not at two peaks, and where whole
    tensors cannot, the program is solved again with more than they lacked, twice as much each
    time, where the original relaxes memory by a constant.

    Raises CannotFitError if no shares fit, and SolverMissingError without a solver.
    """
    classes = _classes(problem)
    lacking = classes.lacking
    for turn in range(_ROUNDS):
        solution = solve(_model(problem, classes, lacking), time_limit_s=problem.time_limit_s)
        if solution.values is None:
            break
        tiers = _tiers(problem, classes, solution.values)
        short = classes.lacking - _relieved(problem, classes, tiers)
        if not (short > 0).any():
            return Answer(_actions(problem, tiers), solution.solver, solution.status)
        most = classes.away.sum(axis=1)
        lacking = np.minimum(lacking + np.maximum(short, 0) * 2**turn, most)
    raise _no_shares(solution)


def _no_shares(solution: Solution) -> CannotFitError:
    msg = f"no shares of the kinds of tensors fit the memory ({solution.solver}: {solution.status})"
    return CannotFitError(msg, hint="allow more memory, or take another policy")


def _classes(problem: Problem) -> _Classes:
    step, intervals = problem.step, problem.intervals
    members: dict[str, list[int]] = {name: [] for name in _CLASSES}
    for k in sorted(range(len(intervals)), key=lambda k: (-_size(problem, k), k)):
        kind = step.tensors[intervals[k].tensor].kind
        members[kind if kind in members else "other"].append(k)
    groups = tuple(tuple(members[name]) for name in _CLASSES)
    lacking = step.demand - problem.planned_bytes
    ops = np.flatnonzero(lacking > 0)
    away = [absent_bytes(step, [intervals[k] for k in group])[ops] for group in groups]
    places = problem.places
    writers = [
        [k for k in group if places[k].position == 0 and not places[k].clean] for group in groups
    ]
    return _Classes(
        groups,
        np.array(away, dtype=np.float64).T,
        lacking[ops].astype(np.float64),
        _times(problem, writers, to_gpu=False),
        _times(problem, groups, to_gpu=True),
        np.array([sum(_nbytes(problem, k) for k in group) for group in writers], dtype=np.float64),
    )


def _size(problem: Problem, index: int) -> int:
    return problem.step.tensors[problem.intervals[index].tensor].size


def _nbytes(problem: Problem, index: int) -> int:
    return problem.step.tensors[problem.intervals[index].tensor].nbytes


def _times(
    problem: Problem, groups: Sequence[Sequence[int]], *, to_gpu: bool
) -> NDArray[np.float64]:
    """Return the ns that each channel, a row for each tier, needs for each group."""
    return np.array(
        [
            [
                sum(transfer_ns(problem.hardware, t, _nbytes(problem, k), to_gpu=to_gpu) for k in g)
                for g in groups
            ]
            for t in _TIERS
        ],
        dtype=np.float64,
    )


def _model(problem: Problem, classes: _Classes, lacking: NDArray[np.float64]) -> Model:
    """Return the program: a share of each class for each tier, and the step time last.

    Times are in shares of the ideal step and bytes in shares of the budget, so that all numbers
    are of one size. Among equal times the one with least traffic is best.
    """
    n, period_ns = len(_CLASSES), float(max(problem.step.period_ns, 1))
    scale = float(max(problem.planned_bytes, 1))
    rows = np.unique(np.column_stack([classes.away, lacking]), axis=0) / scale
    away, needed, zero = rows[:, :-1], rows[:, -1], np.zeros((len(rows), n))
    one = np.zeros((len(rows), 1))
    ssd_times, host_times = (
        np.array([classes.out_ns[k], classes.in_ns[k]]) / period_ns for k in range(len(_TIERS))
    )
    matrix = np.vstack(
        [
            np.hstack([ssd_times, np.zeros((2, n)), -np.ones((2, 1))]),
            np.hstack([np.zeros((2, n)), host_times, -np.ones((2, 1))]),
            np.hstack([np.eye(n), np.eye(n), np.zeros((n, 1))]),
            np.hstack([away, away, one]),
            np.hstack([zero, away, one]),
            np.hstack([classes.written / scale, np.zeros(n + 1)])[None],
        ]
    )
    most_written = problem.ssd_write_bytes
    upper = [0.0] * 4 + [1.0] * n + [np.inf] * len(rows)
    upper += [problem.host_bytes / scale] * len(rows)
    upper += [np.inf if most_written is None else most_written / scale]
    lower = [-np.inf] * (4 + n) + needed.tolist() + [-np.inf] * (len(rows) + 1)
    used = np.array([float(bool(group)) for group in classes.intervals])
    share = np.concatenate([used * problem.ssd, used * bool(problem.host_bytes), [np.inf]])
    row, column = np.nonzero(matrix)
    return Model(
        cost=np.concatenate([_HAIR * ssd_times.sum(0), _HAIR * host_times.sum(0), [1.0]]),
        lower=np.array([0.0] * 2 * n + [1.0]),
        upper=share,
        whole=np.zeros(2 * n + 1, dtype=bool),
        row_lower=np.array(lower),
        row_upper=np.array(upper),
        row=row,
        column=column,
        value=matrix[row, column],
    )


def _tiers(problem: Problem, classes: _Classes, values: NDArray[np.float64]) -> dict[int, str]:
    """Turn the shares into tensors, the largest first."""
    n = len(_CLASSES)
    tiers = {}
    for group, ssd, host in zip(classes.intervals, values[:n], values[n : 2 * n], strict=True):
        total = sum(_size(problem, k) for k in group)
        passed = 0
        for k in group:
            if passed < _rounded(ssd) * total:
                tiers[k] = SSD
            elif passed < _rounded(ssd + host) * total:
                tiers[k] = HOST
            passed += _size(problem, k)
    return tiers


def _rounded(share: float) -> float:
    return 1.0 if share > 1 - _HAIR else share - _HAIR


def _relieved(problem: Problem, classes: _Classes, tiers: Mapping[int, str]) -> NDArray[np.float64]:
    """Return the bytes away at each op of the program's rows."""
    if not tiers:
        return np.zeros(len(classes.lacking))
    ops = np.flatnonzero(problem.step.demand > problem.planned_bytes)
    away = absent_bytes(problem.step, [problem.intervals[k] for k in tiers])
    return away[ops].astype(np.float64)


def _actions(problem: Problem, tiers: Mapping[int, str]) -> tuple[Action, ...]:
    issue = {
        k: op
        for tier in _TIERS
        for k, op in issues_in_order(problem, tier, [k for k in tiers if tiers[k] == tier]).items()
    }
    return fit_windows(problem, [Chosen(k, tier, issue[k]) for k, tier in tiers.items()])
