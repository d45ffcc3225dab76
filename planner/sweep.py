"""What a step would cost with more or less memory and faster or slower hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from teraio.planner.check import check_plan
from teraio.planner.make import make_plan
from teraio.planner.outcome import Outcome, outcome_of
from teraio.planner.plan import Controls
from teraio.planner.points import Axes, Point, neighbours_below, points_of
from teraio.planner.problem import Answer
from teraio.planner.simulate import simulate_actions
from teraio.planner.step import load_step, peak
from teraio.profiler.errors import InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from teraio.planner.plan import Hardware, Plan
    from teraio.planner.step import Step
    from teraio.profiler.trace import Trace

_Amounts = tuple[int, ...]

_DEFAULT: Final = Controls()


@dataclass(frozen=True)
class Row:
    """A point and the best plan found for it; `outcome` is None if there is none.

    Then `reason` says why, and `least_bytes` is the least possible memory if that is known,
    or with `least_is_floor` what at least is needed. A
    plan found for a point with no more of anything, `plan_of`, may be the best here as well.
    `at_its_rates` is true if it is timed at that point's rates, not here: transfers that end
    earlier can get in each other's way, and this plan would be slower with all of the rates here.
    """

    point: Point
    outcome: Outcome | None
    reason: str = ""
    least_bytes: int | None = None
    least_is_floor: bool = False
    plan_of: Point | None = None
    at_its_rates: bool = False


@dataclass(frozen=True)
class Sweep:
    """A row for each point, in the order of `points_of`.

    `ideal_ns` is the step with unlimited memory, `peak_bytes` what it needs.
    """

    ideal_ns: int
    peak_bytes: int
    policy: str
    rows: tuple[Row, ...]


class _Solved(NamedTuple):
    """The best plan for a point, and the point that it was found for."""

    plan: Plan
    found_for: Point
    at_its_rates: bool = False


def sweep(
    trace: Trace,
    axes: Axes,
    *,
    sha256: str,
    hardware: Hardware,
    policy: str = "auto",
    margin: float = 0.0,
    controls: Controls = _DEFAULT,
    time_limit_s: float = 60.0,
    step: Step | None = None,
    on_point: Callable[[int, int], None] = lambda _done, _all: None,
) -> Sweep:
    """Return the best plan's costs at each combination of `axes`, whose rates replace `hardware`'s.

    A row is never slower than one with no more memory, host memory and rates: each point also
    tries the plans of those below it. The plan behind each row has passed the checker, and its
    lower bound holds for all points that have no more. `on_point` is called with the number of
    points done and of all. The other arguments are those of `make_plan`.

    Raises what `points_of` raises, and what `make_plan` raises but InfeasibleError, which is a row.
    """
    points = points_of(axes, hardware)
    step = load_step(trace) if step is None else step
    plan_for = partial(
        make_plan, trace, sha256=sha256, margin=margin, controls=controls,
        time_limit_s=time_limit_s, step=step,
    )  # fmt: skip
    search = _Search(step, partial(plan_for, policy=policy))
    by_amounts = {point.amounts: point for point in points}
    order = sorted(by_amounts)
    below = neighbours_below(order)
    for index, amounts in enumerate(order):
        search.solve(by_amounts[amounts], [order[other] for other in below[index]])
        on_point(index + 1, len(order))
    search.share_bounds(order, below)
    return Sweep(step.period_ns, peak(step), policy, tuple(map(search.row, points)))


class _Search:
    """The best plan so far for the amounts of each point, or why there is none."""

    def __init__(self, step: Step, plan_for: Callable[..., Plan]) -> None:
        self.step = step
        self.plan_for = plan_for
        self.solved: dict[_Amounts, _Solved] = {}
        self.failed: dict[_Amounts, InfeasibleError] = {}
        self.bounds_ns: dict[_Amounts, int] = {}

    def solve(self, point: Point, below: list[_Amounts]) -> None:
        """Find the best plan for `point`, with those of the points `below` it at hand."""
        found = []
        try:
            found.append(_Solved(self._plan(point), point))
        except InfeasibleError as error:
            self.failed[point.amounts] = error
        for solved in [self.solved[other] for other in below if other in self.solved]:
            found += self._moved(solved, point, found)
        if found:
            best = min(found, key=lambda solved: solved.plan.prediction.step_ns)
            self.solved[point.amounts] = best
            self.bounds_ns[point.amounts] = max(
                solved.plan.prediction.lower_bound_ns for solved in found
            )

    def share_bounds(self, order: list[_Amounts], below: list[list[int]]) -> None:
        """Raise each lower bound to those of the points with no less: they hold for it too."""
        for index in reversed(range(len(order))):
            bound_ns = self.bounds_ns.get(order[index], 0)
            for other in (order[neighbour] for neighbour in below[index]):
                if other in self.bounds_ns:
                    self.bounds_ns[other] = max(self.bounds_ns[other], bound_ns)

    def row(self, point: Point) -> Row:
        """Return the row of a point that was solved."""
        amounts = point.amounts
        if amounts not in self.solved:
            error = self.failed[amounts]
            reason = str(error).partition("\n")[0]
            return Row(point, None, reason, error.least_bytes, error.is_floor)
        plan, found_for, at_its_rates = self.solved[amounts]
        outcome = outcome_of(self.step, _on_drives_of(point, plan), self.bounds_ns[amounts])
        plan_of = None if found_for.amounts == amounts else found_for
        return Row(point, outcome, plan_of=plan_of, at_its_rates=at_its_rates)

    def _plan(self, point: Point, **options: object) -> Plan:
        return self.plan_for(
            memory_bytes=point.memory_bytes,
            host_bytes=point.host_bytes,
            hardware=point.hardware,
            **options,
        )

    def _moved(self, solved: _Solved, point: Point, found: list[_Solved]) -> list[_Solved]:
        """Return a plan from below as one for `point`, if it is faster than what was found."""
        plan, cost = solved.plan, solved.plan.prediction
        step_ns = simulate_actions(self.step, point.hardware, plan.actions).step_ns
        fastest = min((own.plan.prediction.step_ns for own in found), default=None)
        if fastest is not None and min(step_ns, cost.step_ns) >= fastest:
            return []
        bound_ns = found[0].plan.prediction.lower_bound_ns if found else None
        answer = Answer(plan.actions)
        moved = self._plan(point, answering=lambda _problem: answer, bound_ns=bound_ns)
        moved = replace(moved, policy=plan.policy)
        if step_ns > cost.step_ns:
            moved = _at_rates_of(plan, moved)
            check_plan(self.step, moved)
        return [_Solved(moved, solved.found_for, step_ns > cost.step_ns)]


def _at_rates_of(slower: Plan, plan: Plan) -> Plan:
    """Return `plan` with the rates and times of `slower`, which has the same actions.

    A transfer can be made to take longer than it has to.
    """
    bound_ns = min(plan.prediction.lower_bound_ns, slower.prediction.step_ns)
    prediction = replace(slower.prediction, lower_bound_ns=bound_ns)
    return replace(plan, hardware=slower.hardware, prediction=prediction)


def _on_drives_of(point: Point, plan: Plan) -> Plan:
    """Return `plan` with as many drives as `point` has: their wear depends on it."""
    ssd = replace(plan.hardware.ssd, drives=point.hardware.ssd.drives)
    return replace(plan, hardware=replace(plan.hardware, ssd=ssd))
