"""What a simulated step uses over its time: channels, memory, and bytes moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from teraio.planner.absence import needs_without
from teraio.planner.plan import HOST, SSD, Offload, Traffic
from teraio.planner.timing import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from teraio.planner.plan import Action
    from teraio.planner.simulate import Simulation
    from teraio.planner.step import Step

BINS: Final = 60
"""Parts of equal length into which a step is divided."""


def bin_edges(simulation: Simulation, bins: int = BINS) -> list[int]:
    """Return where the `bins` parts of the simulated step begin and end, in ns."""
    return [simulation.step_ns * k // bins for k in range(bins + 1)]


def channel_use(simulation: Simulation, bins: int = BINS) -> dict[str, list[int]]:
    """Return for how many ns of each part of the step each channel has a transfer under way.

    What a steady run does before and after this step, the step before and after does as well:
    the parts of a channel add up to its `busy_ns`.
    """
    edges = np.array(bin_edges(simulation, bins), dtype=np.int64)
    return {
        name: _covered(spans, edges, simulation.step_ns) for name, spans in simulation.spans.items()
    }


def memory_use(step: Step, simulation: Simulation, bins: int = BINS) -> list[int]:
    """Return the most bytes that an op in each part of the step needs, workspace included.

    An op counts in each part in which it runs; a part in which none runs has what the one
    before it needs.
    """
    timeline = Timeline.of(step, simulation.waits)
    edges = np.array(bin_edges(simulation, bins), dtype=np.int64)
    needs = needs_without(step, simulation.away)
    edges[-1] += 1  # an op that takes no time may begin where the step ends
    over = np.maximum(timeline.ends, timeline.starts + 1)
    firsts = over.searchsorted(edges[:-1], side="right")
    ends = np.maximum(timeline.starts.searchsorted(edges[1:]), 1)
    firsts = np.minimum(firsts, ends - 1)
    return [
        int(needs[first:end].max())
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)
    ]


def traffic(step: Step, actions: Sequence[Action]) -> dict[str, Traffic]:
    """Return the bytes that one step moves to and from each tier, and drops."""
    nbytes = {tensor.id: tensor.nbytes for tensor in step.tensors}
    written, read, dropped = (dict.fromkeys((SSD, HOST), 0) for _ in range(3))
    for action in actions:
        if not isinstance(action, Offload):
            read[action.source] += nbytes[action.tensor]
        elif action.write:
            written[action.to] += nbytes[action.tensor]
        else:
            dropped[action.to] += nbytes[action.tensor]
    return {tier: Traffic(written[tier], read[tier], dropped[tier]) for tier in (SSD, HOST)}


def _covered(spans: NDArray[np.int64], edges: NDArray[np.int64], step_ns: int) -> list[int]:
    """Return the ns of `spans` between one edge and the next, steps before and after folded in."""
    first, last = int(spans.min()) // step_ns, int(spans.max()) // step_ns
    covered = np.zeros(len(edges) - 1, dtype=np.int64)
    for turn in range(first, last + 1):
        at = [
            int(np.clip(edge - spans[:, 0], 0, spans[:, 1] - spans[:, 0]).sum())
            for edge in (edges + turn * step_ns).tolist()
        ]
        covered += np.diff(at)
    sums: list[int] = covered.tolist()
    return sums
