"""Follows a plan through the op stream of a running program.

The plan decides speed, never results: whatever an op touches is there when it runs, planned or
not, and an op sequence that differs from the plan's ends planned evictions for that step.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from teraio.executor.counters import Counters
from teraio.executor.estimate import NewBytes
from teraio.executor.page import FOREVER, NEVER, Page
from teraio.executor.pager import SMALLEST_EVICTION, Pager
from teraio.executor.schedule import Schedule
from teraio.executor.states import State
from teraio.planner.plan import Offload, Prefetch
from teraio.profiler.opstream import WRITE, Op
from teraio.profiler.storages import StorageTable
from teraio.profiler.touch import Hold


class Replay:
    """The listener that carries a plan out.

    `signature` gives that of an op beyond doubt. `on_divergence` is called at the end of each step
    that differs from the plan, except the first, which holds the program's set-up. What follows
    the last step is none. `quiet` are the ops that it need not be told of while it follows.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        pager: Pager,
        table: StorageTable[Page],
        counters: Counters,
        on_divergence: Callable[[str], None],
        signature: Callable[[Op[Page]], int],
    ) -> None:
        self._schedule, self._pager = schedule, pager
        self._dead, self._counters = table.deaths(), counters
        self._on_divergence = on_divergence
        self._exact_signature = signature
        self._new_bytes = NewBytes(schedule)
        self._bound: dict[int, Page] = {}
        self._deferred: list[Page] = []
        self._following = False  # the first step holds the program's set-up
        self.quiet: frozenset[int] = frozenset()
        self._difference = ""
        self._clock = 0
        self._step_began = perf_counter_ns()
        self._step_peak = 0
        self._need = 0

    def before_op(self, op: Op[Page]) -> None:
        """Have the op's arguments on the device, and room for its results."""
        pager, pages = self._pager, op.blocks
        self._clock = clock = self._clock + 1
        pager.where = (op.step, op.index)
        if self._dead:
            self._bury()
        if pager.busy:
            pager.poll()
        if self._following:
            self._compare(op)
        met, access = 0, op.access
        for position, page in enumerate(pages):
            if page.last_use == NEVER:
                met += page.size
            page.last_use = clock
            if page.state is not State.RESIDENT:
                self._settle(page, op)
            if access[position] & WRITE:
                page.dirty = True
        self._need = need = self._needed(op, met)
        if pager.accounted + need > pager.limit_bytes:
            pager.make_room(need, pages)

    def _settle(self, page: Page, op: Op[Page]) -> None:
        if not (op.operator.is_view and self._pager.has_size(page)):
            self._pager.make_present(page, op.blocks)

    def after_op(self, op: Op[Page]) -> None:
        """Account for what the op made, and start what the plan starts here."""
        self._account(op)
        if self._deferred and self._pager.may_fit(self._deferred[0]):
            waiting = [page for page in self._deferred if page.storage is not None]
            self._deferred = [page for page in waiting if not self._pager.prefetch(page)]
        if not self._following:
            self._new_bytes.learn(op)
        elif op.index not in self._schedule.quiet:
            self._act(op)

    def _act(self, op: Op[Page]) -> None:
        for planned in self._schedule.binds.get(op.index, ()):
            self._bind(planned.id, planned.slot, planned.nbytes, op)
        for action in self._schedule.actions.get(op.index, ()):
            if action.tensor in self._bound:  # before its first use there is nothing to act on
                self._counters.planned_actions += 1
                self._counters.executed_actions += self._start(action)

    def out_of_memory(self, op: Op[Page]) -> bool:
        """Make room for an op that found none; return whether it is worth another try."""
        return self._pager.relieve(max(self._need, SMALLEST_EVICTION), op.blocks)

    def touch(self, block: Page, hold: Hold) -> None:
        """Have a storage on the device before memory is reached without an op."""
        self._bury()
        if hold is Hold.SIZE:
            if not self._pager.has_size(block):
                self._pager.make_present(block, [block])
            return
        self._pager.make_present(block, [block])
        self._pager.written(block)
        block.last_use = self._clock
        if hold is not Hold.NOT:
            until = FOREVER if hold is Hold.LIFE else self._pager.where[0]
            block.pinned_until = max(block.pinned_until, until)
        self._pager.resized(block)
        self._pager.make_room(0, [block])  # it may have grown, or be new
        self._note_use(self._pager.accounted)

    def before_fork(self) -> None:
        """Have everything on the device: a forked process cannot fetch."""
        self._bury()
        self._pager.bring_back()
        self._note_use(self._pager.accounted)

    def end_step(self, step: int, ops: int) -> None:
        """Close the books of a step."""
        now = perf_counter_ns()
        if self._following and ops != self._schedule.ops:
            self._diverge(f"the step ended after op {ops - 1}; "
                          f"the plan has {self._schedule.ops} ops")  # fmt: skip
        if self._difference and step > 0:
            message = f"step {step}: {self._difference}"
            self._counters.divergences.append(message)
            self._on_divergence(message)
        self._counters.speeds.end_step(counts=self._following and step > 1)
        self._difference = ""
        self._counters.step_ns.append(now - self._step_began)
        self._counters.peak_by_step.append(self._step_peak)
        self._counters.peak_bytes = max(self._counters.peak_bytes, self._step_peak)
        self._step_began, self._step_peak = now, 0
        self._follow(on=bool(self._schedule.ops))

    def _follow(self, *, on: bool) -> None:
        self._following = on
        self.quiet = self._schedule.quiet if on else frozenset()

    def _compare(self, op: Op[Page]) -> None:
        signatures = self._schedule.signatures
        if op.index < len(signatures):
            if signatures[op.index] == op.signature:
                return
            self._compare_exactly(op)
        else:
            expected = f"the end of the step after {len(signatures)} ops"
            self._diverge(f"op {op.index} is `{op.operator.name}`; the plan has {expected}")

    def _compare_exactly(self, op: Op[Page]) -> None:
        op.signature = self._exact_signature(op)  # the op stream's may be of one much like it
        if self._schedule.signatures[op.index] != op.signature:
            planned = f"`{self._schedule.program.op_name(op.index)}`"
            same = planned == f"`{op.operator.name}`"
            expected = f"{planned} with other shapes or dtypes" if same else planned
            self._diverge(f"op {op.index} is `{op.operator.name}`; the plan has {expected}")

    def _diverge(self, what: str) -> None:
        self._follow(on=False)
        self._difference = what

    def _needed(self, op: Op[Page], met: int) -> int:
        """Return the bytes an op takes on top; `met` are those of arguments not seen before."""
        if self._following:
            return max(self._schedule.needs[op.index] - met, 0)
        op.signature = self._exact_signature(op)
        return self._new_bytes.expect(op)

    def _account(self, op: Op[Page]) -> None:
        pager, first_new = self._pager, op.first_new
        if op.operator.resizes:
            for page in op.blocks[:first_new]:
                pager.resized(page)
        made = 0
        for page in op.blocks[first_new:]:
            page.last_use = self._clock
            made += page.size
        if self._following and made > self._schedule.needs[op.index]:
            self._compare_exactly(op)
        more = self._need - made if self._following else 0
        self._note_use(pager.accounted + more if more > 0 else pager.accounted)

    def _note_use(self, used: int) -> None:
        if used > self._step_peak:
            self._step_peak = used
        if used > self._pager.budget_bytes:
            self._counters.over_budget_ops += 1

    def _bind(self, tensor: int, slot: int, nbytes: int, op: Op[Page]) -> None:
        page = op.blocks[slot] if slot < len(op.blocks) else None
        if page is not None and page.nbytes == nbytes:
            self._bound[tensor] = page
            page.name = self._schedule.names[tensor]
            page.keeps_host_copy = tensor in self._schedule.kept_on_host
        else:
            self._bound.pop(tensor, None)

    def _start(self, action: Offload | Prefetch) -> bool:
        """Start an action of the plan; return whether there was anything it could be done to."""
        page = self._bound[action.tensor]
        if page.storage is None:
            return False
        if isinstance(action, Offload):
            if self._pager.can_move(page):
                self._pager.offload(page, action.to, self._next(action.gone_by_op))
            return page.state in (State.WRITING, State.ABSENT)
        if page.state is State.WRITING:
            self._pager.make_present(page, [page])
        elif page.state is State.ABSENT:
            page.due = True
            if not self._pager.prefetch(page):
                self._deferred.append(page)
        return True

    def _next(self, index: int) -> tuple[int, int]:
        """Return the (step, op) of the next op `index`."""
        step, now = self._pager.where
        return step + (index <= now), index

    def _bury(self) -> None:
        while self._dead:
            self._pager.bury(self._dead.popleft()[0])
