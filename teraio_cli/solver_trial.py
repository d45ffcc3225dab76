"""Solve a one-variable problem with one solver: `python -m teraio_cli.solver_trial NAME`.

Exits with 0 if the answer is right. It is a program of its own because a solver may crash or
hang.
"""

from __future__ import annotations

import sys

import numpy as np

from teraio.planner.solver import Model, solve


def solves(name: str) -> bool:
    """Tell whether the solver finds the greatest whole x <= 10 with 2 x <= 7, which is 3."""
    ten, seven, first = np.array([10.0]), np.array([7.0]), np.array([0])
    model = Model(
        cost=np.array([-1.0]),
        lower=np.array([0.0]),
        upper=ten,
        whole=np.array([True]),
        row_lower=np.array([-np.inf]),
        row_upper=seven,
        row=first,
        column=first,
        value=np.array([2.0]),
    )
    found = solve(model, solver=name)
    return found.status == "optimal" and found.objective == -3


if __name__ == "__main__":
    sys.exit(0 if solves(sys.argv[1]) else 1)
