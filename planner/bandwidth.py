"""How long transfers take, and what is left of each channel's time in a step.

Positions are unwrapped: slot k of the next step is k + n_ops. Slot k is the time from the start
of op k to the start of the next one. All times are whole ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.plan import HOST, SSD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from teraio.planner.plan import Hardware

_FIRST_LOOK: Final = 64
"""Slots looked at first when searching for free time; each further look is twice as long."""


def transfer_ns(hardware: Hardware, tier: str, nbytes: int, *, to_gpu: bool) -> int:
    """Return the ns that one transfer of `nbytes` takes on an idle channel.

    What goes to or comes from the SSD crosses the host link too.
    """
    ssd, link = hardware.ssd, hardware.host_link
    rate = link.to_gpu_bytes_per_s if to_gpu else link.to_host_bytes_per_s
    if tier != SSD:
        return -(-nbytes * 10**9 // rate)
    rate = min(rate, ssd.read_bytes_per_s if to_gpu else ssd.write_bytes_per_s)
    return ssd.latency_ns - (-nbytes * 10**9 // rate)


@dataclass(frozen=True, slots=True)
class Taken:
    """Time taken from a channel: `ns` of each slot from position `first` on.

    `link` is what the same transfer took from the host link, if that is another channel.
    """

    first: int
    ns: NDArray[np.int64]
    link: Taken | None = None

    @property
    def total_ns(self) -> int:
        """The time taken in all slots together."""
        return int(self.ns.sum())


class Channel:
    """The free time of one channel in one direction, slot by slot, in a step that repeats.

    Of the time taken from it the share `of_link` is taken from the channel `link` too, as far as
    that has any left.
    """

    def __init__(
        self, slots: NDArray[np.int64], link: Channel | None = None, of_link: float = 0.0
    ) -> None:
        self._n_ops = len(slots)
        self._free = np.concatenate([slots, slots])
        self._link = link
        self._of_link = of_link

    def free_ns(self, first: int, end: int) -> int:
        """Return the free time in slots `first` to `end` - 1."""
        return int(self._free[first:end].sum())

    def finish(self, first: int, end: int, ns: int) -> int | None:
        """Return the slot in which `ns` of work is done that starts in slot `first` as early as
        it can, or None if slots `first` to `end` - 1 do not have the time.
        """
        look = _FIRST_LOOK
        while first < end:
            stop = min(first + look, end)
            done = self._free[first:stop].cumsum()
            if done[-1] >= ns:
                return first + int(done.searchsorted(ns))
            ns -= int(done[-1])
            first, look = stop, 2 * look
        return None

    def start(self, first: int, end: int, ns: int) -> int | None:
        """Return the slot in which `ns` of work must start that is done by the end of slot
        `end` - 1, as late as it can, or None if slots `first` to `end` - 1 do not have the time.
        """
        look = _FIRST_LOOK
        while first < end:
            stop = max(end - look, first)
            done = self._free[stop:end][::-1].cumsum()
            if done[-1] >= ns:
                return end - 1 - int(done.searchsorted(ns))
            ns -= int(done[-1])
            end, look = stop, 2 * look
        return None

    def frees_ns(self, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `free_ns` of many windows; none of them ends before it begins."""
        done = self._done()
        return done[np.maximum(firsts, ends)] - done[firsts]

    def finishes(self, firsts: NDArray[np.int64], ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `finish` of many works, as if there were no end; the last slot for none."""
        done = self._done()
        return np.minimum(done.searchsorted(done[firsts] + ns), len(self._free)) - 1

    def starts(self, ends: NDArray[np.int64], ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `start` of many works, as if there were no beginning; -1 for none."""
        done = self._done()
        return done.searchsorted(done[ends] - ns, side="right") - 1

    def _done(self) -> NDArray[np.int64]:
        return np.concatenate([[0], self._free.cumsum()])

    def take_early(self, first: int, end: int, ns: int) -> Taken:
        """Take up to `ns` of the free time in slots `first` to `end` - 1, the earliest first."""
        return self._take(first, _split(self._free[first:end], ns))

    def take_late(self, first: int, end: int, ns: int) -> Taken:
        """Take up to `ns` of the free time in slots `first` to `end` - 1, the latest first."""
        return self._take(first, _split(self._free[first:end][::-1], ns)[::-1])

    def give_back(self, taken: Taken) -> None:
        """Undo a take."""
        add_cyclic(self._free, taken.first, taken.ns)
        if self._link is not None and taken.link is not None:
            self._link.give_back(taken.link)

    def _take(self, first: int, ns: NDArray[np.int64]) -> Taken:
        used = ns.nonzero()[0]
        if len(used):
            ns = ns[used[0] : used[-1] + 1].copy()
            first += int(used[0])
        taken = Taken(first, ns if len(used) else ns[:0].copy(), self._take_link(first, ns))
        add_cyclic(self._free, first, -taken.ns)
        return taken

    def _take_link(self, first: int, ns: NDArray[np.int64]) -> Taken | None:
        if self._link is None:
            return None
        first %= self._n_ops
        free = self._link._free[first : first + len(ns)]
        wanted = np.ceil(ns * self._of_link).astype(np.int64)
        return self._link._take(first, np.minimum(wanted, free))


class Channels:
    """The four channels of a step: to and from each tier.

    What goes to or comes from the SSD crosses the host link too, and so takes some of its time;
    without `hardware` that is not counted.
    """

    def __init__(self, slots: NDArray[np.int64], hardware: Hardware | None = None) -> None:
        self._channels = {}
        for to_gpu in (False, True):
            host = self._channels[HOST, to_gpu] = Channel(slots)
            shared = (host, _share_of_link(hardware, to_gpu=to_gpu)) if hardware else ()
            self._channels[SSD, to_gpu] = Channel(slots, *shared)

    def to_tier(self, tier: str) -> Channel:
        """Return the channel from the device to `tier`."""
        return self._channels[tier, False]

    def to_gpu(self, tier: str) -> Channel:
        """Return the channel from `tier` to the device."""
        return self._channels[tier, True]


def _share_of_link(hardware: Hardware, *, to_gpu: bool) -> float:
    """Return the share of the host link that a transfer of the SSD takes up."""
    ssd, link = hardware.ssd, hardware.host_link
    if to_gpu:
        return min(1.0, ssd.read_bytes_per_s / link.to_gpu_bytes_per_s)
    return min(1.0, ssd.write_bytes_per_s / link.to_host_bytes_per_s)


def add_cyclic(doubled: NDArray[np.int64], first: int, values: NDArray[np.int64]) -> None:
    """Add `values` from position `first` on to a step's values that are stored twice in a row.

    `doubled` has the values of the step and then the same again, so that a window that crosses
    the step's end is one slice; `values` spans less than a step.
    """
    n_ops = len(doubled) // 2
    first %= n_ops
    doubled[first : first + len(values)] += values
    inside = min(len(values), n_ops - first)
    doubled[first + n_ops : first + n_ops + inside] += values[:inside]
    doubled[: len(values) - inside] += values[inside:]


def _split(free: NDArray[np.int64], ns: int) -> NDArray[np.int64]:
    """Return how `ns` of work fills `free` in order."""
    done: NDArray[np.int64] = np.minimum(free.cumsum(), ns)
    done[1:] -= done[:-1].copy()
    return done
