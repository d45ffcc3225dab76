"""Linear and integer programs as plain data, and the one place that calls solvers.

HiGHS is called through highspy, as a program of 50,000 variables takes PuLP 1.5 s to build and
to read back, and highspy 0.07 s; without highspy, CBC is called through PuLP, 3.3 or 4.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from teraio.profiler.errors import SolverMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

HIGHS: Final = "HiGHS"
CBC: Final = "CBC"

Status = Literal["optimal", "feasible", "infeasible", "unbounded", "no solution", "failed"]
"""`feasible` is an answer that is not proven the best and `no solution` none in the time;
`failed` is a solver that crashed or could not tell."""


@dataclass(frozen=True)
class Model:
    """Minimise cost x for lower <= x <= upper and row_lower <= A x <= row_upper.

    The matrix A has `value[k]` at row `row[k]` and column `column[k]`, each place at most once.
    `whole` marks the variables that must be whole numbers. Bounds may be infinite.
    """

    cost: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    whole: NDArray[np.bool_]
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    value: NDArray[np.float64]

    @property
    def by_row(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """The matrix row by row: where each row starts, and the columns and values in order."""
        order = np.argsort(self.row, kind="stable")
        starts = np.searchsorted(self.row[order], np.arange(len(self.row_lower) + 1))
        return starts, self.column[order], self.value[order]


@dataclass(frozen=True)
class Solution:
    """What a solver found; `values` and `objective` are None unless optimal or feasible.

    No answer can have an objective below `bound`, as far as the solver knows; None if it told
    none. `duals` are the rows' multipliers of a program without whole numbers. `solver` has its
    version.
    """

    status: Status
    values: NDArray[np.float64] | None
    objective: float | None
    bound: float | None
    duals: NDArray[np.float64] | None
    solver: str
    seconds: float


def solvers() -> list[str]:
    """Return the names of the solvers that are there, the preferred one first."""
    found = [HIGHS] if _module("highspy") is not None else []
    return found + ([CBC] if _cbc_path() else [])


def solve(
    model: Model,
    *,
    time_limit_s: float | None = None,
    start: NDArray[np.float64] | None = None,
    relative_gap: float = 0.0,
    solver: str = "",
) -> Solution:
    """Solve `model` with `solver`, or with the first of `solvers()`.

    `start` are values to begin with, NaN for those to be found; they need not fit. An integer
    program is optimal if the objective is within `relative_gap` of the bound. Nothing is printed.

    Raises SolverMissingError if the solver, or any, is not there.
    """
    names = solvers()
    if not names or (solver and solver not in names):
        msg = (
            f"the solver {solver} is not installed"
            if solver
            else "no solver is installed: HiGHS or CBC"
        )
        raise SolverMissingError(msg, hint="HiGHS comes with `pip install highspy`")
    started = time.perf_counter()
    call = _solve_with_highs if (solver or names[0]) == HIGHS else _solve_with_cbc
    found = call(model, time_limit_s, start, relative_gap)
    return replace(_tidy(model, found), seconds=time.perf_counter() - started)


def _tidy(model: Model, found: Solution) -> Solution:
    """Round whole numbers and take away what means nothing."""
    known = found.bound is not None and np.isfinite(found.bound)
    found = replace(found, bound=found.bound if known else None)
    if found.status not in ("optimal", "feasible") or found.values is None:
        return replace(found, values=None, objective=None, duals=None)
    values = np.where(model.whole, np.rint(found.values), found.values)
    return replace(found, values=values, objective=float(model.cost @ values))


def _module(name: str) -> Any:
    """Return the module, or None where it is not there or cannot be loaded."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_FEASIBLE: Final = 2
"""What HiGHS calls a primal solution that keeps to all bounds."""


def _solve_with_highs(
    model: Model, time_limit_s: float | None, start: NDArray[np.float64] | None, gap: float
) -> Solution:
    highspy = _module("highspy")
    with _stdout_dropped():
        highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("mip_rel_gap", gap)
    if time_limit_s is not None:
        highs.setOptionValue("time_limit", float(time_limit_s))
    if highs.passModel(_highs_model(highspy, model)) == highspy.HighsStatus.kError:
        return _highs_solution(highs, "failed", whole=bool(model.whole.any()))
    if start is not None:
        known = np.flatnonzero(~np.isnan(start)).astype(np.int32)
        highs.setSolution(len(known), known, start[known])
    _run(highs)
    if highs.getModelStatus() == highspy.HighsModelStatus.kUnboundedOrInfeasible:
        highs.setOptionValue("presolve", "off")
        _run(highs)
    return _highs_solution(highs, _highs_status(highspy, highs), whole=bool(model.whole.any()))


def _highs_status(highspy: Any, highs: Any) -> Status:
    states = highspy.HighsModelStatus
    known: dict[Any, Status] = {
        states.kOptimal: "optimal",
        states.kModelEmpty: "optimal",
        states.kInfeasible: "infeasible",
        states.kUnbounded: "unbounded",
        states.kTimeLimit: "no solution",
    }
    status = known.get(highs.getModelStatus(), "failed")
    found = highs.getInfo().primal_solution_status == _FEASIBLE
    return "feasible" if found and status == "no solution" else status


def _highs_solution(highs: Any, status: Status, *, whole: bool) -> Solution:
    info, solution = highs.getInfo(), highs.getSolution()
    bound = float(info.objective_function_value) if status == "optimal" else None
    return Solution(
        status=status,
        values=np.array(solution.col_value),
        objective=None,
        bound=float(info.mip_dual_bound) if whole else bound,
        duals=None if whole else np.array(solution.row_dual),
        solver=f"HiGHS {highs.version()}",
        seconds=0.0,
    )


def _highs_model(highspy: Any, model: Model) -> Any:
    starts, columns, values = model.by_row
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.cost), len(model.row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = model.cost, model.lower, model.upper
    lp.row_lower_, lp.row_upper_ = model.row_lower, model.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = starts.astype(np.int32)
    lp.a_matrix_.index_ = columns.astype(np.int32)
    lp.a_matrix_.value_ = values
    if model.whole.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(whole)] for whole in model.whole]
    return lp


def _run(highs: Any) -> None:
    """Run HiGHS in a thread, so that Ctrl-C ends it.

    The thread is waited for through an event: until Python 3.12, `Thread.join` takes a thread
    for ended once it was interrupted. A process that ends while HiGHS runs is aborted.
    """
    done = Event()

    def work() -> None:
        try:
            highs.run()
        finally:
            done.set()

    highs.HandleUserInterrupt = True
    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        done.wait()
    except BaseException:
        highs.cancelSolve()
        done.wait()
        raise
    finally:
        thread.join()


@contextmanager
def _stdout_dropped() -> Iterator[None]:
    """Drop what is written to file descriptor 1: HiGHS prints a banner when it is first used."""
    with suppress(AttributeError, ValueError, OSError):
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
    try:
        kept = os.dup(1)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _cbc_path() -> str:
    """Return the CBC that PuLP has or finds, or the one on PATH; "" if there is none."""
    pulp = _module("pulp")
    if pulp is None:
        return ""
    bundled = getattr(getattr(pulp, "PULP_CBC_CMD", None), "pulp_cbc_path", "")
    paths = (str(pulp.COIN_CMD(msg=False).path), str(bundled), "cbc")
    return next((found for path in paths if (found := shutil.which(path))), "")


def _solve_with_cbc(
    model: Model, time_limit_s: float | None, start: NDArray[np.float64] | None, gap: float
) -> Solution:
    pulp = _module("pulp")
    variables, program = pulp.LpProblem.fromDict(_pulp_model(model, start))
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        limits = {"timeLimit": time_limit_s, "gapRel": gap, "warmStart": start is not None}
        cbc = pulp.COIN_CMD(msg=False, path=_cbc_path(), logPath=str(log), **limits)
        cbc.tmpDir = scratch
        try:
            status = _pulp_status(pulp, program, program.solve(cbc))
        except pulp.PulpError:
            status = "failed"
        lines = log.read_text(errors="replace") if log.exists() else ""
    values = np.array([variables[f"x{j}"].varValue or 0.0 for j in range(len(model.cost))])
    version = re.search(r"Version: (\S+)", lines)
    return Solution(
        status=status,
        values=values,
        objective=None,
        bound=_cbc_bound(model, status, values, lines),
        duals=None if model.whole.any() else _pulp_duals(program, len(model.row_lower)),
        solver=f"CBC {version[1]}" if version else "CBC",
        seconds=0.0,
    )


def _pulp_model(model: Model, start: NDArray[np.float64] | None) -> dict[str, Any]:
    """Return the model as the plain data that every PuLP reads; names are made, so none clash.

    A row with two different bounds becomes two constraints, r0 from below and s0 from above.
    """
    starts, columns, values = model.by_row
    constraints = []
    for row, (low, high) in enumerate(zip(model.row_lower, model.row_upper, strict=True)):
        span = slice(starts[row], starts[row + 1])
        terms = [
            {"name": f"x{j}", "value": v}
            for j, v in zip(columns[span].tolist(), values[span].tolist(), strict=True)
        ]
        sides = [("r", low, 0)] if low == high else [("r", low, 1), ("s", high, -1)]
        constraints += [
            {
                "name": f"{name}{row}",
                "sense": sense,
                "constant": -float(limit),
                "pi": None,
                "coefficients": terms,
            }
            for name, limit, sense in sides
            if np.isfinite(limit)
        ]
    variables = [
        {
            "name": f"x{j}",
            "lowBound": float(low) if np.isfinite(low) else None,
            "upBound": float(high) if np.isfinite(high) else None,
            "cat": "Integer" if whole else "Continuous",
            "varValue": None if start is None or np.isnan(start[j]) else float(start[j]),
            "dj": None,
        }
        for j, (low, high, whole) in enumerate(
            zip(model.lower, model.upper, model.whole, strict=True)
        )
    ]
    cost = [{"name": f"x{j}", "value": v} for j, v in enumerate(model.cost.tolist())]
    return {
        "objective": {"name": "cost", "coefficients": cost},
        "constraints": constraints,
        "variables": variables,
        "parameters": {"name": "model", "sense": 1, "status": 0, "sol_status": 0},
        "sos1": [],
        "sos2": [],
    }


def _pulp_status(pulp: Any, program: Any, told: Any) -> Status:
    """Return how it ended. PuLP 3 says it in `sol_status`, as its `status` calls a run that ran
    out of time optimal; PuLP 4 says it in what `solve` returns.
    """
    if hasattr(program, "sol_status"):
        known: dict[int, Status] = {0: "no solution", 1: "optimal", 2: "feasible"}
        known |= {-1: "infeasible", -2: "unbounded"}
        no_whole_numbers = program.status == -1 and program.sol_status == 0
        return "infeasible" if no_whole_numbers else known.get(program.sol_status, "failed")
    states = pulp.constants.LpSolveStatus
    ends: dict[Any, Status] = {
        states.Optimal: "optimal",
        states.GapLimit: "optimal",
        states.Infeasible: "infeasible",
        states.Unbounded: "unbounded",
    }
    return ends.get(told.status, "feasible" if told.has_solution else "no solution")


def _pulp_duals(program: Any, n_rows: int) -> NDArray[np.float64]:
    constraints = program.constraints
    listed = constraints() if callable(constraints) else constraints.values()
    duals = np.zeros(n_rows)
    for constraint in listed:
        duals[int(constraint.name[1:])] += constraint.pi or 0.0
    return duals


def _cbc_bound(model: Model, status: Status, values: NDArray[np.float64], log: str) -> float | None:
    told = re.search(r"^Lower bound:\s+(\S+)", log, re.MULTILINE)
    if told:
        return float(told[1])
    return float(model.cost @ values) if status == "optimal" else None
