"""What `teraio simulate` prints: a summary with stable keys, in bytes and ns, and its tables."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from teraio.planner.plan import SSD
from teraio.planner.units import format_bytes, format_ns, format_rate
from teraio.planner.usage import bin_edges, channel_use, memory_use, traffic
from teraio_cli.outputs import print_table
from teraio_cli.tables import format_stall, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.plan import Hardware, Plan
    from teraio.planner.simulate import Simulation
    from teraio.planner.step import Step

_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_PLAIN_LEVELS: Final = " .:-=+*#@"
"""For where the blocks cannot be written."""


def summarise_simulation(
    step: Step, plan: Plan, hardware: Hardware, simulation: Simulation, bins: int
) -> dict[str, Any]:
    """Return the summary that `teraio simulate --json` prints."""
    moved = traffic(step, plan.actions)
    told = plan.prediction
    uses = channel_use(simulation, bins)
    return {
        "ops": len(step.ops),
        "ideal_ns": simulation.ideal_ns,
        "step_ns": simulation.step_ns,
        "stall_ns": simulation.stall_ns,
        "stall": asdict(simulation.stall),
        "steps_simulated": simulation.steps,
        "steady": simulation.steady,
        "plan": {"ideal_ns": told.ideal_ns, "step_ns": told.step_ns, "peak_bytes": told.peak_bytes},
        "peak_bytes": simulation.peak_bytes,
        "budget": asdict(plan.budget),
        "traffic": {tier: asdict(own) for tier, own in moved.items()},
        "ssd_written_bytes": moved[SSD].to_tier_bytes,
        "bin_edges_ns": bin_edges(simulation, bins),
        "channels": {
            name: {"busy_ns": simulation.busy_ns[name], "busy_ns_by_bin": use}
            for name, use in uses.items()
        },
        "memory_bytes_by_bin": memory_use(step, simulation, bins),
        "waits": [
            {"op": op, "op_name": step.ops[op].name, "ns": ns} for op, ns in simulation.waits
        ],
        "hardware": asdict(hardware),
    }


def print_simulation(summary: dict[str, Any]) -> None:
    """Print the summary of a simulation."""
    print_table(("simulation", ""), _facts(summary))
    print()
    print_table(
        ("moved in a step", "to tier>", "to device>", "dropped>"),
        [
            (tier, *(format_bytes(own[f"{key}_bytes"]) for key in _WAYS))
            for tier, own in summary["traffic"].items()
        ],
    )
    step_ns, channels = summary["step_ns"], summary["channels"]
    if channels:
        print()
        print_table(
            ("channel", "busy>", "of the step>"),
            [
                (name, format_ns(own["busy_ns"]), share(own["busy_ns"], step_ns))
                for name, own in channels.items()
            ],
        )
    print()
    print_table(("over the step", ""), _bars(summary))


_WAYS: Final = ("to_tier", "to_gpu", "dropped")


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    step_ns, stall, told = summary["step_ns"], summary["stall"], summary["plan"]
    budget, ideal_ns = summary["budget"]["memory_bytes"], summary["ideal_ns"]
    facts = [
        ("ideal step", format_ns(summary["ideal_ns"])),
        ("simulated step", format_ns(step_ns) + ("" if summary["steady"] else ", not steady")),
    ]
    if step_ns != told["step_ns"]:
        by = share(abs(step_ns - told["step_ns"]), told["step_ns"])
        than = f"{by} {'longer' if step_ns > told['step_ns'] else 'shorter'} than predicted"
        facts.append(("the plan's step", f"{format_ns(told['step_ns'])}: the simulated is {than}"))
    facts += [
        ("stall", format_stall(summary["stall_ns"], ideal_ns)),
        ("  late prefetch", _cause(stall["late_prefetch_ns"], ideal_ns, "they start too late")),
        ("  bandwidth", _cause(stall["bandwidth_ns"], ideal_ns, "they queue or share the link")),
        ("  memory", _cause(stall["memory_ns"], ideal_ns, "offloads are not done")),
        ("waiting ops", str(len(summary["waits"]))),
        (
            "peak as it happens",
            f"{format_bytes(summary['peak_bytes'])}, {format_bytes(budget)} budget",
        ),
        ("ssd written", f"{format_bytes(summary['ssd_written_bytes'])} in a step"),
        *_rates(summary["hardware"]),
    ]
    return facts


def _cause(ns: int, ideal_ns: int, why: str) -> str:
    return f"{format_ns(ns)}, {share(ns, ideal_ns)}: {why}"


def _rates(hardware: dict[str, Any]) -> list[tuple[str, str]]:
    ssd, link = hardware["ssd"], hardware["host_link"]
    return [
        (
            "ssd",
            f"reads {format_rate(ssd['read_bytes_per_s'])}, "
            f"writes {format_rate(ssd['write_bytes_per_s'])}",
        ),
        (
            "host link",
            f"to host {format_rate(link['to_host_bytes_per_s'])}, "
            f"to device {format_rate(link['to_gpu_bytes_per_s'])}",
        ),
    ]


def _bars(summary: dict[str, Any]) -> list[tuple[str, str]]:
    edges = summary["bin_edges_ns"]
    widths = [end - begin for begin, end in pairwise(edges)]
    rows = [(name, bar(own["busy_ns_by_bin"], widths)) for name, own in summary["channels"].items()]
    needs = summary["memory_bytes_by_bin"]
    most = max(summary["budget"]["memory_bytes"], *needs)
    return [*rows, ("memory", bar(needs, [most] * len(needs)))]


def bar(parts: Sequence[int], wholes: Sequence[int]) -> str:
    """Return one character for each part: the higher, the more of its whole it is.

    Only nothing is a blank and only all of it is the highest.
    """
    levels = _levels()
    top = len(levels) - 1
    marks = [
        levels[top if part >= whole else -(-part * (top - 1) // whole)]
        for part, whole in zip(parts, wholes, strict=True)
    ]
    return f"|{''.join(marks)}|"


def _levels() -> str:
    try:
        _LEVELS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _PLAIN_LEVELS
    return _LEVELS
