"""Solve a one-variable problem with one PuLP solver: `python -m teraio_cli.solver_trial NAME`.

Exits with 0 if the answer is right. It is a program of its own because a solver may crash, hang
or print on stdout whatever it was told.
"""

from __future__ import annotations

import sys
import tempfile

import pulp


def solves(name: str, folder: str) -> bool:
    """Tell whether the solver finds the greatest whole x <= 10 with 2 x <= 7, which is 3."""
    problem = pulp.LpProblem("trial", pulp.LpMaximize)
    x = pulp.LpVariable("x", 0, 10, cat=pulp.LpInteger)
    problem += x
    problem += 2 * x <= 7
    solver = pulp.getSolver(name, msg=False)
    solver.tmpDir = folder
    problem.solve(solver)
    return bool(problem.sol_status == pulp.LpSolutionOptimal and round(x.value()) == 3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(0 if solves(sys.argv[1], scratch) else 1)
