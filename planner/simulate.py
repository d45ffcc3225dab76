"""Replays a plan in time: how long a step takes, what it waits for and what memory it needs.

Each channel and direction serves one transfer at a time, in the order in which they were
started; one that an op waits for goes first. An op starts once its prefetches are there and the
offloads due by then are done; what it waits is added to every later op of the step. A prefetch
that takes the place of an offload starts once that is done. All times are whole ns.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from teraio.planner.absence import absences, peak_without
from teraio.planner.bandwidth import transfer_ns
from teraio.planner.plan import Offload
from teraio.planner.timing import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.plan import Action, Hardware, Plan
    from teraio.planner.step import Step

MOST_STEPS: Final = 32
"""Steps simulated at most. A run settles in two or three, unless a channel is so nearly full
that its backlog grows for longer; the busiest channel's time then sets the step anyway."""

_RECENT: Final = 5
"""Steps of an unsettled run whose longest is reported: as many as a transfer can span when the
checker lays three steps end to end, and one more."""


@dataclass(frozen=True)
class Stall:
    """What a step waits for: prefetches that are late, and memory that is not yet free."""

    late_prefetch_ns: int
    memory_ns: int


@dataclass(frozen=True)
class Simulation:
    """One steady step.

    `peak_bytes` counts an offloaded tensor until its transfer is done and a prefetched one from
    the end of the op after which it starts. `busy_ns` is the time each channel needs in a step.
    `steady` is false if the `steps` simulated did not settle; the step is then the longest of
    the last few, or as long as the busiest channel needs if that is longer. `waits` are the ops
    that wait, with the ns that each does.
    """

    step_ns: int
    ideal_ns: int
    stall: Stall
    peak_bytes: int
    busy_ns: dict[str, int]
    steps: int
    steady: bool
    waits: tuple[tuple[int, int], ...]

    @property
    def stall_ns(self) -> int:
        """How much longer the step takes than with unlimited memory."""
        return self.step_ns - self.ideal_ns


def simulate(step: Step, plan: Plan) -> Simulation:
    """Replay `plan` on `step` until two steps in a row are alike."""
    return simulate_actions(step, plan.hardware, plan.actions)


def simulate_actions(step: Step, hardware: Hardware, actions: Sequence[Action]) -> Simulation:
    """Replay actions, in op order, on `step` until two steps in a row are alike."""
    run = _Run(step, hardware, actions)
    laps = [run.lap()]
    while len(laps) < MOST_STEPS and (len(laps) == 1 or laps[-1].state != laps[-2].state):
        laps.append(run.lap())
    steady = len(laps) > 1 and laps[-1].state == laps[-2].state
    lap = laps[-1] if steady else max(laps[-_RECENT:], key=lambda lap: lap.stall_ns)
    busy = {channel.name: channel.busy_ns for channel in run.channels.values()}
    behind = max(0, max(busy.values(), default=0) - step.period_ns - lap.stall_ns)
    return Simulation(
        step_ns=step.period_ns + lap.stall_ns + behind,
        ideal_ns=step.period_ns,
        stall=Stall(lap.late_prefetch_ns + behind, lap.memory_ns),
        peak_bytes=run.peak_bytes(lap),
        busy_ns=busy,
        steps=len(laps),
        steady=steady,
        waits=tuple((op, ns) for op, ns in lap.delays if ns),
    )


@dataclass(slots=True, eq=False)
class _Transfer:
    """One transfer of each step; a drop has no channel. Times are from the run's start."""

    after: int
    until: int
    to_gpu: bool
    duration_ns: int
    channel: _Channel | None
    released_ns: int = 0
    done_ns: int | None = 0
    lag_ns: int = 0


@dataclass(slots=True, eq=False)
class _Channel:
    name: str
    busy_ns: int = 0
    free_ns: int = 0
    waiting: deque[_Transfer] = field(default_factory=deque)

    def release(self, transfer: _Transfer, now_ns: int) -> None:
        transfer.released_ns, transfer.done_ns = now_ns, None
        self.waiting.append(transfer)

    def done(self, transfer: _Transfer, now_ns: int) -> int:
        """Return when `transfer` is done, if an op waits for it from `now_ns` on."""
        while self.waiting and max(self.free_ns, self.waiting[0].released_ns) < now_ns:
            self._serve(self.waiting.popleft())
        if transfer.done_ns is None:
            self.waiting.remove(transfer)
            return self._serve(transfer)
        return transfer.done_ns

    def state(self, now_ns: int) -> tuple[object, ...]:
        queue = tuple((id(t), t.released_ns - now_ns) for t in self.waiting)
        return max(0, self.free_ns - now_ns), queue

    def _serve(self, transfer: _Transfer) -> int:
        self.free_ns = max(self.free_ns, transfer.released_ns) + transfer.duration_ns
        transfer.done_ns = self.free_ns
        transfer.lag_ns = transfer.done_ns - transfer.released_ns
        return transfer.done_ns


@dataclass(slots=True)
class _Boundary:
    """What begins and what is due between one op and the next."""

    offloads: list[_Transfer] = field(default_factory=list)
    prefetches: list[_Transfer] = field(default_factory=list)
    offloads_due: list[_Transfer] = field(default_factory=list)
    prefetches_due: list[_Transfer] = field(default_factory=list)


class _Lap(NamedTuple):
    """One simulated step; `delays` are the (op, ns) it waited, `state` what it left behind."""

    late_prefetch_ns: int
    memory_ns: int
    delays: list[tuple[int, int]]
    state: tuple[object, ...]

    @property
    def stall_ns(self) -> int:
        return self.late_prefetch_ns + self.memory_ns


class _Run:
    def __init__(self, step: Step, hardware: Hardware, actions: Sequence[Action]) -> None:
        self.step = step
        self.actions = actions
        self.channels: dict[str, _Channel] = {}
        self.transfers = self._transfers(hardware)
        self.clock_ns = 0
        n_ops = len(step.ops)
        at: defaultdict[int, _Boundary] = defaultdict(_Boundary)
        for transfer in self.transfers:
            if transfer.channel is not None:
                begin, end = at[(transfer.after + 1) % n_ops], at[transfer.until]
                (begin.prefetches if transfer.to_gpu else begin.offloads).append(transfer)
                (end.prefetches_due if transfer.to_gpu else end.offloads_due).append(transfer)
        self.boundaries = sorted(at.items())

    def lap(self) -> _Lap:
        """Simulate the next step."""
        ops = self.step.ops
        delay = late_ns = memory_ns = 0
        delays = []
        for op, boundary in self.boundaries:
            before_ns = self.clock_ns + delay + (ops[op - 1].end_ns if op else 0)
            start_ns = self.clock_ns + delay + ops[op].start_ns
            for transfer in boundary.offloads:
                _release(transfer, before_ns)
            free_ns = max((_done(t, start_ns) for t in boundary.offloads_due), default=0)
            for transfer in boundary.prefetches:
                _release(transfer, max(before_ns, free_ns))
            free_ns = max(start_ns, free_ns)
            ready_ns = max((_done(t, free_ns) for t in boundary.prefetches_due), default=0)
            memory_ns += free_ns - start_ns
            late_ns += max(0, ready_ns - free_ns)
            delays.append((op, max(free_ns, ready_ns) - start_ns))
            delay += delays[-1][1]
        self.clock_ns += self.step.period_ns + delay
        state = tuple(channel.state(self.clock_ns) for channel in self.channels.values())
        return _Lap(late_ns, memory_ns, delays, state)

    def peak_bytes(self, lap: _Lap) -> int:
        """Return the most bytes an op of the step needs, if every step is like `lap`."""
        n_ops = len(self.step.ops)
        timeline = Timeline.of(self.step, lap.delays)
        size = {tensor.id: tensor.size for tensor in self.step.tensors}
        lags = {a: t.lag_ns for a, t in zip(self.actions, self.transfers, strict=True)}
        away = []
        for offload, prefetch in absences(self.actions):
            after, due = offload.after_op, offload.gone_by_op
            done_ns = int(timeline.ends[after]) + lags[offload]
            gone = max(after + 1, timeline.first_start(done_ns))
            gone = min(gone, due if due > after else due + n_ops)
            back = prefetch.after_op + (n_ops if prefetch.after_op < gone else 0)
            away.append((size[offload.tensor], gone, back))
        return peak_without(self.step, away)

    def _transfers(self, hardware: Hardware) -> list[_Transfer]:
        nbytes = {tensor.id: tensor.nbytes for tensor in self.step.tensors}
        transfers = []
        for action in self.actions:
            to_gpu = not isinstance(action, Offload)
            if isinstance(action, Offload):
                tier, until, moves = action.to, action.gone_by_op, action.write
            else:
                tier, until, moves = action.source, action.needed_by_op, True
            ns, channel = 0, None
            if moves:
                ns = transfer_ns(hardware, tier, nbytes[action.tensor], to_gpu=to_gpu)
                channel = self._channel(tier, ns, to_gpu=to_gpu)
            transfers.append(_Transfer(action.after_op, until, to_gpu, ns, channel))
        return transfers

    def _channel(self, tier: str, ns: int, *, to_gpu: bool) -> _Channel:
        name = f"{tier} to gpu" if to_gpu else f"gpu to {tier}"
        channel = self.channels.setdefault(name, _Channel(name))
        channel.busy_ns += ns
        return channel


def _release(transfer: _Transfer, now_ns: int) -> None:
    if transfer.channel is not None:
        transfer.channel.release(transfer, now_ns)


def _done(transfer: _Transfer, now_ns: int) -> int:
    return 0 if transfer.channel is None else transfer.channel.done(transfer, now_ns)
