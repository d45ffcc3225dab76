"""The solvers behind one function: HiGHS through highspy, CBC through PuLP."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from teraio.planner import solver
from teraio.planner.solver import CBC, HIGHS, Model, solve, solvers
from teraio.profiler.errors import SolverMissingError

INF = np.inf
EACH = pytest.mark.parametrize("name", solvers())


def model(cost, upper, matrix, rows, *, whole=False) -> Model:
    """Minimise cost x, 0 <= x <= upper, with `rows` the (lower, upper) of each row."""
    matrix = np.array(matrix, dtype=float)
    row, column = np.nonzero(matrix)
    low, high = np.array(rows, dtype=float).reshape(-1, 2).T
    return Model(
        np.array(cost, dtype=float),
        np.zeros(len(cost)),
        np.full(len(cost), float(upper)),
        np.full(len(cost), whole),
        low,
        high,
        row,
        column,
        matrix[row, column],
    )


def hard() -> Model:
    """A knapsack with 30 rows that no solver finishes in a moment."""
    rng = np.random.default_rng(0)
    matrix = rng.integers(1, 100, (30, 60))
    rows = [(-INF, total // 3) for total in matrix.sum(axis=1)]
    return model(-rng.integers(1, 100, 60), 1, matrix, rows, whole=True)


def test_highs_comes_first_and_both_are_tried_here() -> None:
    assert solvers()[0] == HIGHS


@EACH
def test_whole_numbers_are_whole(name: str) -> None:
    found = solve(model([-1], 10, [[2]], [(-INF, 7)], whole=True), solver=name)
    assert (found.status, found.values.tolist(), found.objective) == ("optimal", [3.0], -3.0)
    assert found.bound == pytest.approx(-3)
    assert found.duals is None
    assert found.solver.startswith(name)
    assert found.solver[len(name) + 1].isdigit()


@EACH
def test_linear_program_has_duals(name: str) -> None:
    # the row with two sides binds above, the other does not
    found = solve(model([-1, -2], 10, [[2, 1], [1, 1]], [(1, 8), (-INF, 30)]), solver=name)
    assert found.status == "optimal"
    assert found.values.tolist() == pytest.approx([0, 8])
    assert found.duals.tolist() == pytest.approx([-2, 0])
    equal = solve(model([3, 1], 10, [[1, 1]], [(12, 12)]), solver=name)
    assert equal.objective == pytest.approx(16)
    assert equal.duals.tolist() == pytest.approx([3])


@EACH
@pytest.mark.parametrize("whole", [False, True])
def test_no_answer_is_named(name: str, whole: bool) -> None:
    impossible = solve(model([-1], 10, [[1]], [(11, INF)], whole=whole), solver=name)
    assert (impossible.status, impossible.values, impossible.objective) == (
        "infeasible", None, None,
    )  # fmt: skip
    endless = solve(model([-1], INF, [[1]], [(1, INF)], whole=whole), solver=name)
    assert (endless.status, endless.values) == ("unbounded", None)


@EACH
def test_no_whole_number_fits(name: str) -> None:
    assert solve(model([1], 10, [[1]], [(0.4, 0.6)], whole=True), solver=name).status == (
        "infeasible"
    )


@EACH
def test_time_out_without_an_answer(name: str) -> None:
    found = solve(hard(), time_limit_s=0, solver=name)
    assert (found.status, found.values, found.objective) == ("no solution", None, None)


@EACH
def test_time_out_with_an_answer(name: str) -> None:
    problem = hard()
    start = np.zeros(60)
    start[0] = 1
    found = solve(problem, time_limit_s=0.2, start=start, solver=name)
    assert found.status == "feasible"
    assert found.bound < found.objective <= problem.cost @ start
    starts, columns, values = problem.by_row
    used = np.add.reduceat(values * found.values[columns], starts[:-1])
    assert (used <= problem.row_upper).all()


@EACH
def test_start_that_does_not_fit_does_no_harm(name: str) -> None:
    problem = model([-1], 10, [[2]], [(-INF, 7)], whole=True)
    found = solve(problem, start=np.array([9.0]), solver=name)
    assert (found.status, found.objective) == ("optimal", -3)


@EACH
def test_nothing_to_decide(name: str) -> None:
    found = solve(model([], 1, np.zeros((0, 0)), []), solver=name)
    assert (found.status, found.objective) == ("optimal", 0)


@EACH
def test_nothing_is_printed(name: str) -> None:
    # a pipe, as C's own buffer is written there only when the process ends
    program = (
        "import sys; sys.path.insert(0, 'tests'); from test_solver import model, solve;"
        "print('before');"
        f"solve(model([-1], 10, [[2]], [(1, 7)], whole=True), solver={name!r});"
        "print('after')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("before\nafter\n", "", 0)


def test_works_where_stdout_is_closed() -> None:
    program = (
        "import os, sys; sys.path.insert(0, 'tests'); from test_solver import model, solve;"
        "os.close(1);"
        "print(solve(model([-1], 10, [[2]], [(1, 7)], whole=True)).objective, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert done.stderr.startswith("-3.0\n")


def test_an_interrupt_ends_the_solver() -> None:
    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    started = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            solve(hard(), time_limit_s=60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - started < 10


def test_cbc_serves_where_highs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    if CBC not in solvers():
        pytest.skip("there is no CBC")
    real = solver._module
    monkeypatch.setattr(solver, "_module", lambda name: None if name == "highspy" else real(name))
    found = solve(model([-1], 10, [[2]], [(-INF, 7)], whole=True))
    assert found.solver.startswith(CBC)
    assert found.objective == -3


def test_no_solver_at_all_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solver, "_module", lambda name: None)
    with pytest.raises(SolverMissingError) as caught:
        solve(model([-1], 10, [[2]], [(-INF, 7)]))
    assert "pip install highspy" in caught.value.hint
    assert caught.value.exit_code == 69


def test_unknown_solver_is_missing() -> None:
    with pytest.raises(SolverMissingError, match="NO_SUCH"):
        solve(model([-1], 10, [[2]], [(-INF, 7)]), solver="NO_SUCH")


def test_a_model_that_highs_refuses_has_failed() -> None:
    found = solve(model([1, 1], 10, [[1e20, 1]], [(1, INF)]), solver=HIGHS)
    assert (found.status, found.values, found.duals) == ("failed", None, None)
