"""The queues of a simulated run: what SSD and host link carry, and when each transfer is done.

A channel, one tier's traffic in one direction, serves one transfer at a time in the order in
which they were released, but one that an op waits for goes before those that have not begun.
The SSD's traffic crosses the host link too. A transfer alone has all its channel can give; an
SSD and a host transfer that run at the same time share the link max-min fairly (Bertsekas and
Gallager, Data Networks, 6.5.2): the SSD takes what it can of half the link, the host transfer
the rest. The SSD's latency keeps its channel busy, but not the link.

Times are whole ns from the run's start. All is exact: n bytes are 2 n 10^9 units of work, of
which a rate of r bytes per second does 2 r in each ns, so that half a rate is whole as well.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from teraio.planner.plan import HOST, SSD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.plan import Hardware

NEVER: Final = 1 << 200
"""A time after every other."""

_UNITS: Final = 2 * 10**9


class Transfer:
    """A transfer that each step makes; it takes `alone_ns` on an idle channel.

    `done_ns` is None from its release until it is done. `lag_ns` is how long after its release
    it was last done; `began_ns` and `ended_ns` are when it last was under way.
    """

    __slots__ = (
        "alone_ns", "began_ns", "channel", "done_ns", "ended_ns", "lag_ns", "nbytes",
        "released_ns",
    )  # fmt: skip

    def __init__(self, channel: Channel, nbytes: int, alone_ns: int) -> None:
        self.channel = channel
        self.nbytes = nbytes
        self.alone_ns = alone_ns
        self.released_ns = 0
        self.done_ns: int | None = 0
        self.lag_ns = self.began_ns = self.ended_ns = 0


class Channel:
    """A queue and the transfer under way; `next_ns` is when the next one begins or it ends.

    The rates `alone` and `together` are units of work per ns. `left` is the work that was left
    at `since_ns`, when the rate last changed.
    """

    __slots__ = (
        "alone", "began_ns", "current", "end_ns", "flows_ns", "idle_ns", "latency_ns", "left",
        "name", "next_ns", "queue", "rate", "since_ns", "together",
    )  # fmt: skip

    def __init__(self, name: str, latency_ns: int, alone: int, together: int) -> None:
        self.name = name
        self.latency_ns = latency_ns
        self.alone = self.rate = alone
        self.together = together
        self.queue: OrderedDict[Transfer, None] = OrderedDict()
        self.current: Transfer | None = None
        self.next_ns = NEVER
        self.idle_ns = self.began_ns = self.flows_ns = self.since_ns = self.end_ns = 0
        self.left = 0

    def release(self, transfer: Transfer, now_ns: int) -> None:
        """Put a transfer at the end of the queue."""
        transfer.released_ns, transfer.done_ns = now_ns, None
        self.queue[transfer] = None
        if self.next_ns == NEVER:
            self.next_ns = max(now_ns, self.idle_ns)

    def promote(self, transfer: Transfer) -> None:
        """Put a transfer that was released before those that have not begun."""
        if transfer is not self.current:
            self.queue.move_to_end(transfer, last=False)

    def begin(self) -> None:
        """Begin the first transfer of the queue, at the full rate."""
        transfer, _ = self.queue.popitem(last=False)
        self.current = transfer
        self.began_ns = self.next_ns
        self.flows_ns = self.since_ns = self.next_ns + self.latency_ns
        self.next_ns = self.end_ns = self.began_ns + transfer.alone_ns
        self.left, self.rate = transfer.nbytes * _UNITS, self.alone

    def end(self, transfer: Transfer) -> None:
        """End the transfer under way."""
        self.current = None
        self.idle_ns = transfer.done_ns = transfer.ended_ns = now_ns = self.end_ns
        transfer.lag_ns = now_ns - transfer.released_ns
        transfer.began_ns = self.began_ns
        self.next_ns = NEVER
        for following in self.queue:
            self.next_ns = max(now_ns, following.released_ns)
            break

    def set_rate(self, now_ns: int, rate: int) -> None:
        """Do the rest of the transfer under way at another rate."""
        self.left = self.left_at(now_ns)
        if now_ns > self.since_ns:
            self.since_ns = now_ns
        self.rate = rate
        self.next_ns = self.end_ns = self.since_ns - (-self.left // rate)

    def left_at(self, now_ns: int) -> int:
        """Return the units of work left of the transfer under way."""
        if now_ns <= self.since_ns:
            return self.left
        return max(0, self.left - self.rate * (now_ns - self.since_ns))

    def delay(self, ns: int) -> None:
        """Let `ns` pass in which nothing moves."""
        self.left += ns * self.rate
        self.end_ns += ns
        if self.next_ns != NEVER:
            self.idle_ns = self.next_ns = self.next_ns + ns

    def backlog_ns(self, now_ns: int) -> int:
        """Return how long what is under way and in the queue will take at the present rates."""
        under_way = self.end_ns - now_ns if self.current is not None else 0
        return under_way + sum(transfer.alone_ns for transfer in self.queue)

    def state(self, now_ns: int) -> tuple[object, ...]:
        """Return all that what comes depends on, with times from `now_ns`."""
        queue = [(id(transfer), transfer.released_ns - now_ns) for transfer in self.queue]
        if self.current is None:
            return (queue,)
        current = self.current
        waits_ns = max(0, self.flows_ns - now_ns)
        since_ns = current.released_ns - now_ns
        return id(current), since_ns, waits_ns, self.left_at(now_ns), self.end_ns - now_ns, queue


class Link:
    """The host link in one direction, with the channels of both tiers."""

    def __init__(self, hardware: Hardware, *, to_gpu: bool) -> None:
        ssd, link = hardware.ssd, hardware.host_link
        rate = ssd.read_bytes_per_s if to_gpu else ssd.write_bytes_per_s
        most = link.to_gpu_bytes_per_s if to_gpu else link.to_host_bytes_per_s
        share = min(2 * rate, most)
        self.ssd = Channel(_name(SSD, to_gpu=to_gpu), ssd.latency_ns, 2 * min(rate, most), share)
        self.host = Channel(_name(HOST, to_gpu=to_gpu), 0, 2 * most, 2 * most - share)

    def transfer(self, tier: str, nbytes: int) -> Transfer:
        """Return a transfer to or from `tier`, not yet released."""
        channel = self.ssd if tier == SSD else self.host
        return Transfer(channel, nbytes, channel.latency_ns - (-nbytes * _UNITS // channel.alone))

    def play(self, until_ns: int) -> None:
        """Let happen what begins or ends before `until_ns`."""
        ssd, host = self.ssd, self.host
        while True:
            channel = ssd if ssd.next_ns <= host.next_ns else host
            if channel.next_ns >= until_ns:
                return
            self._happen(channel, until_ns)

    def wait(self, due: Sequence[Transfer], now_ns: int) -> int:
        """Return when all of `due` are done, if an op waits for them from `now_ns` on."""
        self.play(now_ns)
        done_ns = 0
        for transfer in due:
            if transfer.done_ns is None:
                return self._finish(due)
            if transfer.done_ns > done_ns:
                done_ns = transfer.done_ns
        return done_ns

    def _finish(self, due: Sequence[Transfer]) -> int:
        missing = [transfer for transfer in due if transfer.done_ns is None]
        for transfer in reversed(missing):
            transfer.channel.promote(transfer)
        for transfer in missing:
            while transfer.done_ns is None:
                self._happen(self.ssd if self.ssd.next_ns <= self.host.next_ns else self.host)
        return max(transfer.done_ns or 0 for transfer in due)

    def _happen(self, channel: Channel, until_ns: int = 0) -> None:
        """Let the next event of `channel` happen: a transfer begins, flows or ends.

        Before `until_ns` the next one begins as soon as one ends.
        """
        now_ns = channel.next_ns
        if channel.current is None:
            channel.begin()
        elif now_ns == channel.end_ns:
            channel.end(channel.current)
            if channel.next_ns == now_ns < until_ns:
                channel.begin()
        other = self.host if channel is self.ssd else self.ssd
        if other.current is not None:
            self._share(now_ns)

    def _share(self, now_ns: int) -> None:
        """Give the transfers under way the rates that they have from now on."""
        ssd, host = self.ssd, self.host
        both = ssd.current is not None and host.current is not None
        flows = both and ssd.flows_ns <= now_ns
        for channel in (ssd, host):
            rate = channel.together if flows else channel.alone
            if rate != channel.rate and channel.current is not None:
                channel.set_rate(now_ns, rate)
        if ssd.current is not None:
            ssd.next_ns = ssd.flows_ns if both and not flows else ssd.end_ns


def _name(tier: str, *, to_gpu: bool) -> str:
    return f"{tier} to gpu" if to_gpu else f"gpu to {tier}"
