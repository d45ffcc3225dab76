"""On demand, as a pager does it: the least recently used tensor leaves when memory runs out.

What CUDA's unified memory does by pages and the baseline "Base UVM" of G10 (arXiv 2310.09443,
section 5) by tensors.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from teraio.planner.plan import HOST, Offload
from teraio.planner.problem import Answer
from teraio.planner.tiers import Chosen
from teraio.planner.windows import fit_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.plan import Action
    from teraio.planner.problem import Problem
    from teraio.planner.step import Interval


def lru(problem: Problem) -> Answer:
    """Evict the least recently used tensor where memory runs out, and fetch on demand.

    Nothing is known ahead: an eviction starts and ends right before the op that needs the
    memory, and a fetch right before the op that needs the tensor; both are waited for. Victims
    go to host memory while it has room, then to the SSD.

    Different from the original: whole tensors move, not pages of 4 KiB to 2 MiB, and at the
    full rate of the channel with no cost of a page fault, so this is the better of the two; what
    is never moved (`Problem.intervals`) is no victim; a victim whose copy is current is not
    written again.

    Raises CannotFitError if the step does not fit with all victims away.
    """
    over = (problem.step.demand - problem.planned_bytes).tolist()
    evicted = evicted_on_demand(problem, over, range(len(problem.intervals)))
    actions = fit_windows(problem, [Chosen(k, on_demand_tier(problem, k)) for k in evicted])
    return Answer(_just_in_time(problem, actions))


def on_demand_tier(problem: Problem, index: int) -> str:
    """Return host memory if interval `index` may use it, else the SSD."""
    tiers = problem.tiers(problem.intervals[index].tensor)
    return HOST if HOST in tiers else tiers[0]


def evicted_on_demand(
    problem: Problem, over: Sequence[int], candidates: Sequence[int]
) -> list[int]:
    """Return the intervals of `candidates` that a pager would use in a steady step.

    `over` are the bytes each op is over the budget without it. The first of two turns only
    brings the pager into the state in which it begins every step.
    """
    n_ops, intervals, tensors = len(over), problem.intervals, problem.step.tensors
    order = sorted(
        (intervals[k] for k in candidates if problem.tiers(intervals[k].tensor)),
        key=attrgetter("after_op", "tensor"),
    )
    idle = deque((i.needed_by_op - n_ops, i) for i in order if i.needed_by_op > n_ops)
    begin: defaultdict[int, list[Interval]] = defaultdict(list)
    for interval in order:
        begin[(interval.after_op + 1) % n_ops].append(interval)
    returning = [0] * (3 * n_ops)
    used: dict[Interval, int] = {}
    away = 0
    for now in range(2 * n_ops):
        away -= returning[now]
        idle.extend((now + i.needed_by_op - i.after_op - 1, i) for i in begin[now % n_ops])
        while over[now % n_ops] > away and idle:
            end, interval = idle.popleft()
            if end > now and used.get(interval) != end:
                away += tensors[interval.tensor].size
                returning[end] += tensors[interval.tensor].size
                used[interval] = end
    return [k for k, interval in enumerate(intervals) if used.get(interval, 0) > n_ops]


def _just_in_time(problem: Problem, actions: Sequence[Action]) -> tuple[Action, ...]:
    """Let each offload begin only right before the op by which it has to be done."""
    n_ops = len(problem.step.ops)
    late = []
    for action in actions:
        if isinstance(action, Offload):
            action = replace(action, after_op=(action.gone_by_op - 1) % n_ops)
        late.append((action.after_op, not isinstance(action, Offload), action))
    return tuple(map(itemgetter(2), sorted(late, key=itemgetter(0, 1))))
