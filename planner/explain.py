"""Why a tensor moves under a plan, or does not: one row for each of its idle intervals."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from teraio.planner.absence import absences
from teraio.planner.controls import label, matched, matches, problem_of
from teraio.planner.relief import Cost, Relief, costs, rank, relief
from teraio.planner.step import idle_ns, intervals_of
from teraio.profiler.errors import UsageError

if TYPE_CHECKING:
    from teraio.planner.plan import Offload, Plan, Prefetch
    from teraio.planner.problem import Problem
    from teraio.planner.step import Interval, Step

Reason = Literal[
    "pinned",
    "unused",
    "never idle",
    "kept",
    "too small",
    "no tier",
    "not over budget",
    "chosen",
    "not needed",
]
"""Why a tensor or an interval moves or stays: pinned to the device; the step never uses it; no
op lies between its uses; `keep` rules it; it takes less than `min_tensor_bytes`; no tier may hold
it; memory is nowhere over the budget while it is idle; it moves; the step fits without it."""

_SHOWN: Final = 5


@dataclass(frozen=True)
class Move:
    """How an interval is used: the windows as in the plan's two actions; `write` false drops."""

    tier: str
    write: bool
    after_op: int
    gone_by_op: int
    back_after_op: int
    needed_by_op: int


@dataclass(frozen=True)
class IdleRow:
    """An idle interval, from the end of one op to the start of another, perhaps in the next step.

    With everything on the device, `over_ops` ops inside are over the budget; moving the tensor
    relieves them by up to `relieved_bytes`, first so at `relieved_op`. Among all intervals of the
    step that may be used and relieve something this one is number `rank` by transfer time per
    byte relieved, the cheapest being number 1; None if it is not among them.
    """

    after_op: int
    after_name: str
    needed_by_op: int
    needed_by_name: str
    next_step: bool
    idle_ns: int
    costs: tuple[Cost, ...]
    over_ops: int
    relieved_bytes: int
    relieved_op: int | None
    rank: int | None
    move: Move | None
    reason: Reason


@dataclass(frozen=True)
class Explanation:
    """Why a tensor moves or stays; `ranked` is how many intervals have a rank."""

    id: int
    label: str
    kind: str
    nbytes: int
    uses: int
    reason: Reason
    ranked: int
    min_tensor_bytes: int
    intervals: tuple[IdleRow, ...]


def find_tensor(step: Step, text: str) -> int:
    """Return the tensor (an index into `Step.tensors`) that `text` names.

    That is an id, a whole name (or origin, see `controls.label`), or a regular expression that
    matches just one tensor. Raises UsageError, with the closest names, if there is no such tensor
    or more than one.
    """
    if text.isdecimal():
        found = [i for i, tensor in enumerate(step.tensors) if str(tensor.id) == text]
    else:
        found = [i for i, tensor in enumerate(step.tensors) if label(step, tensor) == text]
        found = found or sorted(matches(step, [text])[text])
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(step, text, found)
    msg = f"no tensor is `{text}`"
    raise UsageError(msg, hint=_closest(step, text))


def explain(step: Step, plan: Plan, index: int) -> Explanation:
    """Return why tensor `index` of `step` moves or stays under `plan`."""
    tensor = step.tensors[index]
    problem = problem_of(step, plan.budget, plan.hardware, plan.controls)
    always = _always(problem, plan, index)
    ranks = rank(problem)
    gaps = intervals_of(index, tensor, len(step.ops))
    pairs = [pair for pair in absences(plan.actions) if pair[0].tensor == tensor.id]
    rows = tuple(
        _row(problem, gap, ranks.get(gap), _move(step, gap, pairs), always) for gap in gaps
    )
    return Explanation(
        id=tensor.id,
        label=label(step, tensor),
        kind=tensor.kind,
        nbytes=tensor.nbytes,
        uses=len(tensor.uses),
        reason=always or _of_rows(rows),
        ranked=len(ranks),
        min_tensor_bytes=plan.controls.min_tensor_bytes,
        intervals=rows,
    )


def _always(problem: Problem, plan: Plan, index: int) -> Reason | None:
    """Return why no interval of the tensor can be used, if that is so."""
    tensor = problem.step.tensors[index]
    if tensor.pinned:
        return "pinned"
    if not tensor.uses:
        return "unused"
    if not intervals_of(index, tensor, len(problem.step.ops)):
        return "never idle"
    if index in matched(problem.step, plan.controls.keep):
        return "kept"
    if tensor.size < plan.controls.min_tensor_bytes:
        return "too small"
    return None if problem.tiers(index) else "no tier"


def _row(
    problem: Problem,
    gap: Interval,
    place: int | None,
    move: Move | None,
    always: Reason | None,
) -> IdleRow:
    ops, n_ops = problem.step.ops, len(problem.step.ops)
    relieved = relief(problem.step, gap, problem.planned_bytes)
    needed = gap.needed_by_op % n_ops
    return IdleRow(
        after_op=gap.after_op,
        after_name=ops[gap.after_op].name,
        needed_by_op=needed,
        needed_by_name=ops[needed].name,
        next_step=gap.needed_by_op >= n_ops,
        idle_ns=idle_ns(problem.step, gap),
        costs=costs(problem, gap.tensor),
        over_ops=relieved.over_ops,
        relieved_bytes=relieved.nbytes,
        relieved_op=relieved.op,
        rank=place,
        move=move,
        reason=_reason(relieved, move, always),
    )


def _reason(relieved: Relief, move: Move | None, always: Reason | None) -> Reason:
    if move is not None:
        return "chosen"
    if always is not None:
        return always
    return "not needed" if relieved.nbytes else "not over budget"


def _of_rows(rows: tuple[IdleRow, ...]) -> Reason:
    reasons = {row.reason for row in rows}
    order: tuple[Reason, ...] = ("chosen", "not needed", "not over budget")
    return next(reason for reason in order if reason in reasons)


def _move(step: Step, gap: Interval, pairs: list[tuple[Offload, Prefetch]]) -> Move | None:
    """Return the move that lies in `gap`; it may start later than the gap does."""
    n_ops, length = len(step.ops), gap.needed_by_op - gap.after_op
    for offload, prefetch in pairs:
        if (offload.after_op - gap.after_op) % n_ops < length:
            return Move(
                tier=offload.to,
                write=offload.write,
                after_op=offload.after_op,
                gone_by_op=offload.gone_by_op,
                back_after_op=prefetch.after_op,
                needed_by_op=prefetch.needed_by_op,
            )
    return None


def _ambiguous(step: Step, text: str, found: list[int]) -> UsageError:
    shown = [
        f"  {step.tensors[index].id}  {label(step, step.tensors[index]) or 'no name'}"
        for index in found[:_SHOWN]
    ]
    more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    msg = "\n".join([f"{len(found)} tensors are `{text}`:", *shown, *more])
    return UsageError(msg, hint="name one of them by its id")


def _closest(step: Step, text: str) -> str:
    """Return the names most like `text`; those in which it occurs in another case come first."""
    names = list(dict.fromkeys(filter(None, (label(step, tensor) for tensor in step.tensors))))
    inside = [name for name in names if text.lower() in name.lower()]
    close = dict.fromkeys([*inside, *get_close_matches(text, names, n=_SHOWN, cutoff=0.4)])
    if close:
        return "the closest are " + ", ".join(f"`{name}`" for name in list(close)[:_SHOWN])
    return "`teraio inspect TRACE --top 50` lists tensors with their ids"
