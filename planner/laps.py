"""One simulated step after the other: what happens between which ops, and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from teraio.planner.channels import Link, Transfer
from teraio.planner.plan import Offload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.plan import Action, Hardware
    from teraio.planner.step import Step


class Lap(NamedTuple):
    """One simulated step.

    `waits` are the (op, ns) it waited, `state` all that the next step depends on and `backlogs`
    the ns of work that were left in each channel.
    """

    late_prefetch_ns: int
    bandwidth_ns: int
    memory_ns: int
    waits: tuple[tuple[int, int], ...]
    state: tuple[object, ...]
    backlogs: tuple[int, ...]

    @property
    def stall_ns(self) -> int:
        """How much longer it took than the ideal step."""
        return self.late_prefetch_ns + self.bandwidth_ns + self.memory_ns


class _Boundary(NamedTuple):
    """What is released and what is due between an op and the one before it.

    Times are from the start of an ideal step.
    """

    op: int
    before_ns: int
    start_ns: int
    offloads: Sequence[Transfer]
    prefetches: Sequence[Transfer]
    offloads_due: Sequence[Transfer]
    prefetches_due: Sequence[Transfer]


class _Events(NamedTuple):
    """The transfers that are released, and those that are due, at the boundary before an op."""

    offloads: dict[int, list[Transfer]]
    prefetches: dict[int, list[Transfer]]
    offloads_due: dict[int, list[Transfer]]
    prefetches_due: dict[int, list[Transfer]]


class Run:
    """A run of steps, all alike; `transfers` are those of the actions, None for a drop."""

    def __init__(self, step: Step, hardware: Hardware, actions: Sequence[Action]) -> None:
        self.out = Link(hardware, to_gpu=False)
        self.into = Link(hardware, to_gpu=True)
        self.channels = (self.out.ssd, self.into.ssd, self.out.host, self.into.host)
        self.transfers = self._transfers(step, actions)
        self.period_ns = step.period_ns
        self.start_ns = 0
        self.clock_ns = 0
        self._boundaries = _boundaries(step, actions, self.transfers)

    def lap(self) -> Lap:
        """Simulate the next step."""
        out, into = self.out, self.into
        late_ns = bandwidth_ns = memory_ns = 0
        waits = []
        self.start_ns = now = self.clock_ns
        for op, before_ns, start_ns, offloads, prefetches, gone, needed in self._boundaries:
            before, start = now + before_ns, now + start_ns
            for transfer in offloads:
                transfer.channel.release(transfer, before)
            room = out.wait(gone, start) if gone else 0
            for transfer in prefetches:
                transfer.channel.release(transfer, max(before, room))
            room = max(start, room)
            ready = max(room, into.wait(needed, room)) if needed else room
            if ready > start:
                waits.append((op, ready - start))
                now += ready - start
                memory_ns += room - start
                late = _late(needed, room, ready)
                late_ns += late
                bandwidth_ns += ready - room - late
        self.clock_ns = now + self.period_ns
        return Lap(late_ns, bandwidth_ns, memory_ns, tuple(waits), self._state(), self._backlogs())

    def _state(self) -> tuple[object, ...]:
        for link in (self.out, self.into):
            link.play(self.clock_ns)
        return tuple(channel.state(self.clock_ns) for channel in self.channels)

    def _backlogs(self) -> tuple[int, ...]:
        return tuple(channel.backlog_ns(self.clock_ns) for channel in self.channels)

    def _transfers(self, step: Step, actions: Sequence[Action]) -> list[Transfer | None]:
        nbytes = {tensor.id: tensor.nbytes for tensor in step.tensors}
        transfers: list[Transfer | None] = []
        for action in actions:
            if not isinstance(action, Offload):
                transfers.append(self.into.transfer(action.source, nbytes[action.tensor]))
            elif action.write:
                transfers.append(self.out.transfer(action.to, nbytes[action.tensor]))
            else:
                transfers.append(None)
        return transfers


def _late(needed: Sequence[Transfer], room_ns: int, ready_ns: int) -> int:
    """Return how long an op waits, of `room_ns` to `ready_ns`, were all channels idle."""
    if ready_ns == room_ns:
        return 0
    alone_ns = max(transfer.released_ns + transfer.alone_ns for transfer in needed)
    return min(max(0, alone_ns - room_ns), ready_ns - room_ns)


def _boundaries(
    step: Step, actions: Sequence[Action], transfers: Sequence[Transfer | None]
) -> list[_Boundary]:
    ops, at = step.ops, _Events({}, {}, {}, {})
    for action, transfer in zip(actions, transfers, strict=True):
        if transfer is None:
            continue
        begin = (action.after_op + 1) % len(ops)
        if isinstance(action, Offload):
            at.offloads.setdefault(begin, []).append(transfer)
            at.offloads_due.setdefault(action.gone_by_op, []).append(transfer)
        else:
            at.prefetches.setdefault(begin, []).append(transfer)
            at.prefetches_due.setdefault(action.needed_by_op, []).append(transfer)
    offloads, prefetches, offloads_due, prefetches_due = (events.get for events in at)
    starts = step.starts.tolist()
    return [
        _Boundary(
            op,
            ops[op - 1].end_ns if op else 0,
            starts[op],
            offloads(op, ()),
            prefetches(op, ()),
            offloads_due(op, ()),
            prefetches_due(op, ()),
        )
        for op in sorted(set().union(*at))
    ]
