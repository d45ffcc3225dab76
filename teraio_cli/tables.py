"""The tables of `teraio inspect`, from the summaries it prints as JSON."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from teraio.planner.units import format_bytes, format_ns, format_rate, format_written
from teraio_cli.outputs import print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIERS: Final = ("ssd", "host")


def print_trace(summary: dict[str, Any]) -> None:
    """Print the summary of a trace."""
    print_table(("trace", ""), _trace_facts(summary))
    peak = summary["peak"]
    kinds = [*peak["by_kind"].items(), ("workspace", peak["workspace_bytes"])]
    rows = [(kind, format_bytes(n), share(n, peak["bytes"])) for kind, n in kinds]
    _another(("memory at the peak", "bytes>", "of peak>"), rows)
    _another(
        ("largest tensors", "bytes>", "kind", "uses>", "name or origin"),
        [
            (str(t["id"]), format_bytes(t["nbytes"]), t["kind"], str(t["uses"]), _origin(t))
            for t in summary["largest"]
        ],
    )


def _trace_facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    peak, active, idle = summary["peak"], summary["active"], summary["idle"]
    facts = [
        ("command", shlex.join(summary["command"])),
        ("device", _device(summary)),
        ("steps", str(summary["steps"])),
        ("ops in a step", str(summary["ops"])),
        ("tensors", str(summary["tensors"])),
        ("step", format_ns(summary["step_ns"])),
        ("peak", f"{format_bytes(peak['bytes'])} at op {peak['op']}"),
        ("peak op", " ".join(filter(None, (peak["op_name"], peak["phase"], peak["module"])))),
        ("idle at the peak", _of(idle["bytes_at_peak"], peak["bytes"])),
        ("active on average", f"{active['mean_share']:.1%} of allocated bytes"),
        ("active at most", f"{active['max_share']:.1%} of allocated bytes"),
        ("idle intervals", f"{idle['intervals']} of {idle['tensors']} tensors"),
        (
            "idle for",
            f"{format_ns(idle['median_ns'])} median, {format_ns(idle['longest_ns'])} at most",
        ),
    ]
    return [(name, text) for name, text in facts if text]


def _origin(tensor: dict[str, Any]) -> str:
    where = f" in {tensor['made_in']}" if tensor["made_in"] else ""
    return str(tensor["name"]) or f"{tensor['made_by']}{where}"


def _device(summary: dict[str, Any]) -> str:
    memory = summary["device_memory_bytes"]
    size = f", {format_bytes(memory)}" if memory else ""
    torch = f", torch {summary['torch']}" if summary["torch"] else ""
    return f"{summary['device']}{size}{torch}"


def print_plan(summary: dict[str, Any]) -> None:
    """Print the summary of a plan."""
    print_table(("plan", ""), _plan_facts(summary))
    moved = [summary["prediction"][tier] for tier in TIERS]
    _another(
        ("moved in a step", "to tier>", "to device>", "dropped>"),
        [
            (tier, *(format_bytes(n[key]) for key in _TRAFFIC))
            for tier, n in zip(TIERS, moved, strict=True)
        ],
    )
    _another(
        ("busiest tensors", "bytes>", "moved in a step>", "kind", "name"),
        [
            (
                str(t["id"]),
                format_bytes(t["nbytes"]),
                format_bytes(t["moved_bytes"]),
                t["kind"],
                t["name"],
            )
            for t in summary["moving"]
        ],
    )
    _another(
        ("first actions", "tier", "tensor>", "after op>", "by op>", "after"),
        [
            (
                a["do"],
                a["tier"],
                str(a["tensor"]),
                str(a["after_op"]),
                str(a["by_op"]),
                a["op_name"],
            )
            for a in summary["first_actions"]
        ],
    )


_TRAFFIC: Final = ("to_tier_bytes", "to_gpu_bytes", "dropped_bytes")


def _plan_facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    budget, cost, actions = summary["budget"], summary["prediction"], summary["actions"]
    return [
        ("budget", f"{format_bytes(budget['memory_bytes'])}, margin {budget['margin']:.1%}"),
        ("host budget", format_bytes(budget["host_bytes"])),
        (
            "policy",
            " ".join(filter(None, (summary["policy"][k] for k in ("name", "solver", "status")))),
        ),
        ("peak as planned", _of(cost["peak_bytes"], budget["memory_bytes"], "of the budget")),
        ("ideal step", format_ns(cost["ideal_ns"])),
        ("predicted step", format_ns(cost["step_ns"])),
        ("stall", format_stall(cost["stall_ns"], cost["ideal_ns"])),
        ("lower bound", format_bound(cost["step_ns"], cost["lower_bound_ns"])),
        ("actions", ", ".join(f"{count} {name}" for name, count in actions.items())),
        ("ssd wear", endurance_fact(summary["endurance"])),
        *_controls_facts(summary["controls"]),
        *_hardware_facts(summary["hardware"]),
        ("trace", f"{summary['trace']['ops']} ops, sha256 {summary['trace']['sha256'][:12]}"),
    ]


def _controls_facts(controls: dict[str, Any]) -> list[tuple[str, str]]:
    limit = controls["ssd_write_bytes"]
    facts = [
        ("tiers", ", ".join(controls["tiers"])),
        ("kept", ", ".join(controls["keep"])),
        ("never on ssd", ", ".join(controls["never_ssd"])),
        ("smaller tensors stay", f"below {format_bytes(controls['min_tensor_bytes'])}"),
        ("write limit", "" if limit is None else f"{format_bytes(limit)} to the SSD in a step"),
    ]
    return [(name, text) for name, text in facts if text]


def endurance_fact(wear: dict[str, Any]) -> str:
    """Return what a plan's writes do to its SSDs (`planner.endurance.Endurance` as a dict)."""
    text = (
        f"{format_bytes(wear['step_bytes'])} written in a step, "
        f"{format_written(wear['day_bytes'])} in a day"
    )
    if wear["days"] is None:
        return text
    rated = f"the rated {format_written(wear['tbw_bytes'])}"
    every = f" of each of {wear['drives']} drives" if wear["drives"] > 1 else ""
    return f"{text}: {wear['days']:,.1f} days to {rated}{every}"


def _hardware_facts(hardware: dict[str, Any]) -> list[tuple[str, str]]:
    ssd, link, source = hardware["ssd"], hardware["host_link"], hardware["source"]
    return [
        (
            "ssd",
            f"reads {format_rate(ssd['read_bytes_per_s'])}, "
            f"writes {format_rate(ssd['write_bytes_per_s'])}, {_drives(ssd)}",
        ),
        (
            "host link",
            f"to host {format_rate(link['to_host_bytes_per_s'])}, "
            f"to device {format_rate(link['to_gpu_bytes_per_s'])}",
        ),
        ("rates from", format_sources(source)),
    ]


def _drives(ssd: dict[str, Any]) -> str:
    drives: int = ssd["drives"]
    return f"{drives} drives together" if drives > 1 else "1 drive"


def format_sources(source: Mapping[str, str]) -> str:
    """Return how each rate was obtained (`planner.plan.Hardware.source`), in words."""
    rest = dict(source)
    ssd, link = rest.pop("ssd", ""), rest.pop("host_link", "")
    read, write = (rest.pop(f"ssd.{way}_bytes_per_s", "") for way in ("read", "write"))
    if read and write:
        latency = _PARTS.sub("", ssd).partition(":")[0]
        rates = f"rates {read}" if read == write else f"reads {read}, writes {write}"
        ssd = f"{rates}, latency {latency}" if latency else rates
    elif read or write:
        given = f"reads {read}" if read else f"writes {write}"
        ssd = f"{given}, the rest {ssd}"
    parts = {"ssd": ssd, "host link": link, "ssd endurance": rest.pop("ssd.tbw_bytes", "")} | rest
    return "; ".join(f"{name} {text}" for name, text in parts.items() if text)


_PARTS: Final = re.compile(r"^\d+ x ")
"""What `--ssds` puts before how a rate was obtained; a latency is not multiplied."""


def format_stall(stall_ns: int, ideal_ns: int) -> str:
    """Return a stall and its share of the ideal step."""
    return f"{format_ns(stall_ns)}, {share(stall_ns, ideal_ns)} of the ideal step"


def _of(part: int, whole: int, what: str = "of it") -> str:
    return f"{format_bytes(part)}, {share(part, whole)} {what}"


def _another(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    print()
    print_table(columns, rows)


def format_bound(step_ns: int, bound_ns: int) -> str:
    """Return the lower bound of a step's time and how far a predicted step is above it."""
    above = step_ns / bound_ns - 1 if bound_ns else 0.0
    return f"{format_ns(bound_ns)}, the plan is {above:.1%} above it"


def share(part: int, whole: int) -> str:
    """Return `part` as a percentage of `whole`; `-` where there is no whole."""
    return f"{part / whole:.1%}" if whole else "-"
