"""Replays a plan in time: how long a step takes, what it waits for and what memory it needs.

An op starts once its prefetches are there and the offloads due by then are done; what it waits
is added to every later op of the step. A prefetch that takes the place of an offload starts
once that is done. How transfers follow each other and share the host link is in `channels`.
Steps are simulated until they repeat. All times are whole ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.absence import absences, peak_without
from teraio.planner.channels import NEVER
from teraio.planner.laps import Lap, Run
from teraio.planner.plan import Offload
from teraio.planner.timing import Timeline
from teraio.profiler.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.channels import Transfer
    from teraio.planner.plan import Action, Hardware, Plan
    from teraio.planner.step import Step

MOST_STEPS: Final = 32
"""Steps simulated at most."""

_RECENT: Final = 5
"""Steps of an unsettled run whose longest is reported: as many as a transfer can span when the
checker lays three steps end to end, and one more."""


@dataclass(frozen=True)
class Stall:
    """What a step waits for, in ns.

    `late_prefetch_ns` is for prefetches that would be late even if nothing else moved: they
    start too late. `bandwidth_ns` is for the rest of what prefetches are late: they queue behind
    others or share the link. `memory_ns` is for memory that an offload is yet to free.
    """

    late_prefetch_ns: int
    bandwidth_ns: int
    memory_ns: int


@dataclass(frozen=True)
class Simulation:
    """One steady step.

    `peak_bytes` counts an offloaded tensor until its transfer is done and a prefetched one from
    the end of the op after which it starts. `busy_ns` is how long each channel has a transfer
    under way in a step. `steady` is false if the `steps` simulated did not come to repeat
    themselves; the step is then the longest of the last few, or as long as the busiest channel
    needs if that is longer. Where several steps repeat in turn, the longest counts. `waits` are
    the ops that wait, with the ns that each does.

    `spans` are when the transfers of each channel begin and end, in ns from a step's start;
    those that began in the step before have begun before 0. `away` has (bytes, first op, last
    op) of each absence, as `absence.peak_without` takes it.
    """

    step_ns: int
    ideal_ns: int
    stall: Stall
    peak_bytes: int
    busy_ns: dict[str, int]
    steps: int
    steady: bool
    waits: tuple[tuple[int, int], ...]
    spans: dict[str, NDArray[np.int64]] = field(repr=False, compare=False)
    away: NDArray[np.int64] = field(repr=False, compare=False)

    @property
    def stall_ns(self) -> int:
        """How much longer the step takes than with unlimited memory."""
        return self.step_ns - self.ideal_ns


def simulate(step: Step, plan: Plan) -> Simulation:
    """Replay `plan` on `step` until the steps repeat; raises as `simulate_actions` does."""
    return simulate_actions(step, plan.hardware, plan.actions)


def simulate_actions(step: Step, hardware: Hardware, actions: Sequence[Action]) -> Simulation:
    """Replay actions, in op order, on `step` until the steps repeat.

    Raises UsageError if the channels are so slow that times would not stay within 64 bits.
    """
    run = Run(step, hardware, actions)
    _require_countable(run)
    lap, steps, steady = _settled(run, step, actions)
    spans = _spans(run)
    busy = {name: int((own[:, 1] - own[:, 0]).sum()) for name, own in spans.items()}
    behind = max(0, _needed_ns(run, busy) - step.period_ns - lap.stall_ns)
    away = _away(step, lap, actions, run.transfers)
    return Simulation(
        step_ns=step.period_ns + lap.stall_ns + behind,
        ideal_ns=step.period_ns,
        stall=Stall(lap.late_prefetch_ns, lap.bandwidth_ns + behind, lap.memory_ns),
        peak_bytes=peak_without(step, away),
        busy_ns=busy,
        steps=steps,
        steady=steady,
        waits=lap.waits,
        spans=spans,
        away=away,
    )


def _require_countable(run: Run) -> None:
    alone_ns = sum(transfer.alone_ns for transfer in run.transfers if transfer is not None)
    if run.period_ns + 4 * alone_ns >= 1 << 63:
        msg = f"the transfers of a step would take {alone_ns} ns, longer than can be counted"
        raise UsageError(msg, hint="check the rates, and that they are bytes per second")


def _settled(run: Run, step: Step, actions: Sequence[Action]) -> tuple[Lap, int, bool]:
    """Return the step to report, how many were simulated and whether they came to repeat."""
    laps: list[Lap] = []
    first = 0  # the step from which on nothing was skipped
    while len(laps) < MOST_STEPS:
        laps.append(run.lap())
        for earlier in range(first, len(laps) - 1):
            if laps[earlier].state == laps[-1].state:
                return _longest(laps[earlier + 1 :]), len(laps), True
        if _skip(run, step, actions, laps[first:][-3:]):
            first = len(laps)
    return _longest(laps[-_RECENT:]), len(laps), False


def _longest(laps: Sequence[Lap]) -> Lap:
    return max(laps, key=lambda lap: lap.stall_ns)


def _skip(run: Run, step: Step, actions: Sequence[Action], laps: Sequence[Lap]) -> bool:
    """Skip the steps that would be as the last three but for backlogs that grow by the same ns
    in each, until an op is about to wait; return whether there are such steps.

    What would have piled up by then is made up for by a delay of each channel.
    """
    if len(laps) < 3 or any(lap.waits != laps[0].waits for lap in laps):
        return False
    earlier, before, last = (lap.backlogs for lap in laps)
    growth = [b - a for a, b in zip(before, last, strict=True)]
    if growth != [b - a for a, b in zip(earlier, before, strict=True)] or max(growth) <= 0:
        return False
    slacks = _slacks(run, step, actions, laps[-1])
    steps = min(slack // more for slack, more in zip(slacks, growth, strict=True) if more > 0) - 1
    for channel, more in zip(run.channels, growth, strict=True):
        channel.delay(max(0, steps * more))
    return steps > 0


def _slacks(run: Run, step: Step, actions: Sequence[Action], lap: Lap) -> list[int]:
    """Return how long before an op needs it the latest transfer of each channel is done."""
    timeline = Timeline.of(step, lap.waits)
    slacks = dict.fromkeys(run.channels, NEVER)
    for action, transfer in zip(actions, run.transfers, strict=True):
        if transfer is not None:
            until = action.gone_by_op if isinstance(action, Offload) else action.needed_by_op
            until += 0 if until > action.after_op else len(step.ops)
            left = timeline.start(until) - int(timeline.ends[action.after_op]) - transfer.lag_ns
            slacks[transfer.channel] = min(slacks[transfer.channel], left)
    return list(slacks.values())


def _needed_ns(run: Run, busy: dict[str, int]) -> int:
    """Return how long a step must be for every channel, and the link, to carry its transfers."""
    needs = list(busy.values())
    for link in (run.out, run.into):
        nbytes = sum(t.nbytes for t in run.transfers if t and t.channel in (link.ssd, link.host))
        needs.append(-(-nbytes * 2 * 10**9 // link.host.alone))
    return max(needs)


def _spans(run: Run) -> dict[str, NDArray[np.int64]]:
    spans = {}
    for channel in run.channels:
        own = [(t.began_ns, t.ended_ns) for t in run.transfers if t and t.channel is channel]
        if own:
            spans[channel.name] = np.array(own, dtype=np.int64) - run.start_ns
    return spans


def _away(
    step: Step, lap: Lap, actions: Sequence[Action], transfers: Sequence[Transfer | None]
) -> NDArray[np.int64]:
    """Return (bytes, first op, last op) of each absence, if every step is like `lap`."""
    n_ops, timeline = len(step.ops), Timeline.of(step, lap.waits)
    size = {tensor.id: tensor.size for tensor in step.tensors}
    lags = {id(a): t.lag_ns if t else 0 for a, t in zip(actions, transfers, strict=True)}
    rows = [
        (size[o.tensor], o.after_op, o.gone_by_op, p.after_op, lags[id(o)])
        for o, p in absences(actions)
    ]
    sizes, after, due, back, lag = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    done = timeline.first_starts(timeline.ends[after] + lag)
    gone = np.minimum(np.maximum(after + 1, done), np.where(due > after, due, due + n_ops))
    return np.stack([sizes, gone, np.where(back < gone, back + n_ops, back)], axis=1)
