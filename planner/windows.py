"""From chosen intervals to a plan's actions: when each transfer has to be done and may start.

For policies that decide what moves and leave the windows to memory. An offload is due no sooner
than memory needs it, the oldest first, as a channel serves them. Where that does not suffice, a
prefetch starts later than it was meant to, the one with the latest need first. An op that has
to wait for such a transfer waits, as it does in a system that ran out of planned memory.

Positions count the ops of the sweep's two turns from 0: op k of the second turn is k + n_ops.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from teraio.planner.minimum import absent_bytes
from teraio.planner.plan import Offload, Prefetch
from teraio.planner.problem import CannotFitError
from teraio.planner.tiers import place_copies
from teraio.planner.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.plan import Action
    from teraio.planner.problem import Problem
    from teraio.planner.tiers import Chosen, Placed

_TURNS = 2
"""The second turn starts with what is away at the end of the first, and decides."""


def fit_windows(problem: Problem, chosen: Sequence[Chosen]) -> tuple[Action, ...]:
    """Return the actions, in op order, that use the chosen intervals within the problem's memory.

    Each interval is to be chosen at most once. A copy that has no room in its tier goes to the
    other one if that is allowed; if neither has room, its interval is not used.

    Raises CannotFitError with the op and the bytes over if memory does not suffice with every
    chosen tensor away.
    """
    placed = place_copies(problem, chosen)
    _require_fit(problem, placed)
    sweep = _Sweep(problem, placed)
    return _actions(problem, placed, sweep.windows())


def _require_fit(problem: Problem, placed: Sequence[Placed]) -> None:
    step = problem.step
    needed = step.demand
    if placed:
        needed = needed - absent_bytes(step, [move.interval for move in placed])
    op = int(np.argmax(needed))
    if needed[op] > problem.planned_bytes:
        over = int(needed[op]) - problem.planned_bytes
        msg = (
            f"with all that the policy moves away, op {op} (`{step.ops[op].name}`) still needs "
            f"{format_bytes(int(needed[op]))}, {format_bytes(int(over))} over the budget"
        )
        raise CannotFitError(msg, hint="allow more memory, or take another policy")


def _actions(
    problem: Problem, placed: Sequence[Placed], windows: Sequence[tuple[int, int]]
) -> tuple[Action, ...]:
    """Return the actions in op order; at one op offloads first, and those due first first."""
    n_ops, tensors = len(problem.step.ops), problem.step.tensors
    keyed: list[tuple[int, int, int, int, Action]] = []
    for ((index, after, needed), tier, write, _), (gone, back) in zip(placed, windows, strict=True):
        tensor = tensors[index].id
        offload = Offload(tensor, tier, after, gone % n_ops, write)
        keyed.append((after, 0, gone - after, tensor, offload))
        prefetch = Prefetch(tensor, tier, back % n_ops, needed % n_ops)
        keyed.append((back % n_ops, 1, needed - back, tensor, prefetch))
    keyed.sort(key=itemgetter(0, 1, 2, 3))
    return tuple(map(itemgetter(4), keyed))


class _State(Enum):
    HERE = 0
    LEAVING = 1
    AWAY = 2
    COMING = 3
    HELD_BACK = 4


class _Move:
    """A chosen interval in the sweep: its tensor may be away at ops `first` to `end` - 1.

    It is to be back after op `back_by` and gone by op `gone_by`; `gone` and `back` are what the
    present turn found, all counted from the start of the step in which the interval begins.
    That step began at position `origin`.
    """

    __slots__ = (
        "back", "back_by", "drop", "end", "first", "gone", "gone_by", "index", "origin", "size",
        "state",
    )  # fmt: skip

    def __init__(self, index: int, placed: Placed, size: int, n_ops: int) -> None:
        first, end = placed.interval.after_op + 1, placed.interval.needed_by_op
        issue = end - 1 if placed.issue_after is None else placed.issue_after
        turn = first // n_ops * n_ops
        self.first, self.end, self.size = first - turn, end - turn, size
        self.back_by = self.gone_by = min(max(issue, first), end - 1) - turn
        self.index = index
        self.drop = not placed.write
        self.origin = 0
        self.state = _State.HERE
        self.reset()

    def reset(self) -> None:
        """Forget what the last turn found."""
        self.gone, self.back = self.end, -1


class _Sweep:
    """Runs over two turns of the step and keeps the resident bytes within the budget.

    The second turn may only add to what is away in the first one's last state, so that every
    op it has passed stays within the budget when the step repeats.
    """

    def __init__(self, problem: Problem, placed: Sequence[Placed]) -> None:
        step = problem.step
        self.n_ops = len(step.ops)
        self.over: list[int] = (step.demand - problem.planned_bytes).tolist()
        self.moves = [
            _Move(index, p, step.tensors[p.interval.tensor].size, self.n_ops)
            for index, p in enumerate(placed)
        ]
        self.begin: list[list[_Move]] = [[] for _ in self.over]
        self.leave: list[list[_Move]] = [[] for _ in self.over]
        self.issue: list[list[_Move]] = [[] for _ in self.over]
        self.away_bytes = 0
        self.leaving: deque[tuple[int, _Move]] = deque()
        self.coming: list[tuple[int, int]] = []
        self.held_back: list[tuple[int, int]] = []
        for move in sorted(self.moves, key=lambda move: move.first):
            self.begin[move.first].append(move)
            self.leave[move.gone_by % self.n_ops].append(move)
            self.issue[(move.back_by + 1) % self.n_ops].append(move)

    def windows(self) -> list[tuple[int, int]]:
        """Return the first and the last op at which each move's tensor is away.

        Both count on from the op after the interval's begin (see `Chosen.issue_after`).
        """
        self._begin_before()
        for turn in range(_TURNS):
            if turn:
                self._start_turn()
            for op in range(self.n_ops):
                self._pass(op, turn * self.n_ops + op)
        self._note_held_back()
        return [(move.gone, move.back) for move in self.moves]

    def _begin_before(self) -> None:
        """Put what the step before the first left unfinished into its state."""
        for move in sorted(self.moves, key=lambda move: move.first):
            if move.end < self.n_ops:
                continue
            move.origin = -self.n_ops
            if move.back_by < self.n_ops - 1:
                self._come(move, 0)
            elif move.drop or move.gone_by < self.n_ops:
                self._go(move, 0)
            else:
                move.state = _State.LEAVING
                self.leaving.append((move.origin, move))

    def _start_turn(self) -> None:
        """Make what reaches into the next step at least as much away as it has been now."""
        for move in self.moves:
            if move.end >= self.n_ops:
                if move.gone < self.n_ops:
                    move.gone_by = move.gone
                    self.leave[move.gone].append(move)
                if move.state is _State.HELD_BACK:
                    move.back_by = self.n_ops - 1
            move.reset()

    def _note_held_back(self) -> None:
        for move in self.moves:
            if move.state is _State.HELD_BACK:
                move.back = max(move.back, self.n_ops - 1)

    def _pass(self, op: int, now: int) -> None:
        for move in self.issue[op]:
            if move.state is _State.AWAY and now == move.origin + move.back_by + 1:
                self._come(move, now)
        for move in self.begin[op]:
            move.origin = now - op
            move.state = _State.LEAVING
            if move.drop:
                self._go(move, now)
            else:
                self.leaving.append((move.origin, move))
        for move in self.leave[op]:
            if move.state is _State.LEAVING:
                self._go(move, now)
        while self.held_back and self.held_back[0][0] == now:
            self._come(self.moves[heapq.heappop(self.held_back)[1]], now)
        while self.over[op] > self.away_bytes:
            self._relieve(now)
        if self.held_back:
            self._let_come(self.away_bytes - self.over[op], now)

    def _relieve(self, now: int) -> None:
        """Take one more tensor away at `now`: the oldest leaving, or the last needed coming."""
        while self.leaving:
            origin, move = self.leaving.popleft()
            if move.state is _State.LEAVING and move.origin == origin:
                self._go(move, now)
                return
        move = self.moves[heapq.heappop(self.coming)[1]]
        while move.state is not _State.COMING or move.origin + move.end <= now:
            move = self.moves[heapq.heappop(self.coming)[1]]
        move.state = _State.HELD_BACK
        self.away_bytes += move.size
        heapq.heappush(self.held_back, (move.origin + move.end, move.index))

    def _let_come(self, room: int, now: int) -> None:
        """Start prefetches that were held back, those needed first, while there is room."""
        while self.held_back and self.moves[self.held_back[0][1]].size <= room:
            move = self.moves[heapq.heappop(self.held_back)[1]]
            room -= move.size
            self._come(move, now)

    def _go(self, move: _Move, now: int) -> None:
        move.state = _State.AWAY
        move.gone = min(move.gone, max(now - move.origin, move.first))
        self.away_bytes += move.size

    def _come(self, move: _Move, now: int) -> None:
        if move.state is not _State.HERE:
            self.away_bytes -= move.size
        move.state = _State.COMING
        move.back = max(move.back, now - move.origin - 1)
        heapq.heappush(self.coming, (-(move.origin + move.end), move.index))
