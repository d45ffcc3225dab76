"""What `teraio compare` and `teraio sweep` print: tables, JSON and CSV."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from teraio.planner.units import format_bytes, format_ns, format_rate
from teraio_cli.outputs import print_table
from teraio_cli.tables import share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.compare import Comparison
    from teraio.planner.compare import Row as PolicyRow
    from teraio.planner.outcome import Outcome
    from teraio.planner.points import Point
    from teraio.planner.sweep import Row, Sweep

_WAITS: Final = ("late>", "busy>", "memory>")


def print_comparison(comparison: Comparison) -> None:
    """Print a row for each policy: its step, what that waits for, and what moves.

    Those with no plan follow with the reason. What a terminal of 80 columns has no room for is in
    the JSON.
    """
    ideal_ns = _outcome(comparison.ideal).step_ns
    last = _last([row.outcome for row in comparison.rows])
    columns = ("policy", "step>", "slowdown>", "gap>", *_WAITS, f"{last}>")
    rows = [["ideal", format_ns(ideal_ns), "1.000x"], _bound_cells(comparison)]
    rows = [[*cells, *[""] * (len(columns) - len(cells))] for cells in rows]
    rows += [_policy_row(row, ideal_ns, last) for row in comparison.rows if row.outcome]
    print_table(columns, rows)
    missing = [(row.policy, row.reason) for row in comparison.rows if row.outcome is None]
    if missing:
        print()
        print_table(("no plan", "because"), missing)


def _last(outcomes: Sequence[Outcome | None]) -> str:
    """Return what the last column has: days that the SSDs last if known, or where bytes go."""
    found = [outcome for outcome in outcomes if outcome]
    if any(outcome.ssd_days is not None for outcome in found):
        return "ssd days"
    wrote = any(outcome.ssd.to_tier_bytes for outcome in found)
    to_host = any(outcome.host.to_tier_bytes for outcome in found)
    return "to host" if to_host and not wrote else "to ssd"


def _last_cell(found: Outcome, last: str) -> str:
    if last == "ssd days":
        return "" if found.ssd_days is None else f"{found.ssd_days:,.1f}"
    tier = found.host if last == "to host" else found.ssd
    return format_bytes(tier.to_tier_bytes)


def _policy_row(row: PolicyRow, ideal_ns: int, last: str) -> list[str]:
    found = _outcome(row)
    stall = found.stall
    return [
        row.policy if found.policy == row.policy else f"{row.policy} ({found.policy})",
        format_ns(found.step_ns),
        f"{found.slowdown:.3f}x",
        f"{found.gap:.1%}",
        *(
            share(ns, ideal_ns)
            for ns in (stall.late_prefetch_ns, stall.bandwidth_ns, stall.memory_ns)
        ),
        _last_cell(found, last),
    ]


def _bound_cells(comparison: Comparison) -> list[str]:
    bound_ns = comparison.lower_bound_ns
    if bound_ns is None:
        return ["lower bound", "not known"]
    slowdown = bound_ns / _outcome(comparison.ideal).step_ns
    return ["lower bound", format_ns(bound_ns), f"{slowdown:.3f}x"]


def _outcome(row: PolicyRow) -> Outcome:
    assert row.outcome is not None
    return row.outcome


def comparison_json(comparison: Comparison, sha256: str) -> dict[str, Any]:
    """Return a comparison as JSON has it: bytes, ns and shares."""
    return {"trace": {"sha256": sha256}, **asdict(comparison)}


def print_sweep(sweep: Sweep) -> None:
    """Print a row for each point; only axes with more than one value have a column."""
    points = [row.point for row in sweep.rows]
    axes = [name for name in AXES if name == "memory" or len({_axis(p, name) for p in points}) > 1]
    last = _last([row.outcome for row in sweep.rows])
    columns = [*(f"{name}>" for name in axes), "step>", "slowdown>", "gap>", f"{last}>", ""]
    print_table(columns, [_point_row(row, axes, len(columns), last) for row in sweep.rows])


def _point_row(row: Row, axes: Sequence[str], width: int, last: str) -> list[str]:
    cells = [axis_text(row.point, name) for name in axes]
    found = row.outcome
    if found is None:
        return [*cells, *[""] * (width - len(cells) - 1), _lack(row)]
    return [
        *cells,
        format_ns(found.step_ns),
        f"{found.slowdown:.3f}x",
        f"{found.gap:.1%}",
        _last_cell(found, last),
        _origin(row),
    ]


def _lack(row: Row) -> str:
    if row.least_bytes is None:
        return row.reason
    return f"needs {'at least ' if row.least_is_floor else ''}{format_bytes(row.least_bytes)}"


def _origin(row: Row) -> str:
    """Return the point that the plan was found for, by what it has less of."""
    if row.plan_of is None:
        return ""
    other = [axis_label(row.plan_of, name) for name in AXES if _differs(row, name)]
    return f"as with {', '.join(other)}" + (", timed for that too" if row.at_its_rates else "")


def _differs(row: Row, name: str) -> bool:
    return row.plan_of is not None and _axis(row.plan_of, name) != _axis(row.point, name)


AXES: Final = ("memory", "host memory", "ssds", "each reads", "each writes", "host link")
"""The axes of a sweep in the order of `planner.points.Axes`, as tables and pictures name them."""


def _axis(point: Point, name: str) -> int:
    ssd, link = point.hardware.ssd, point.hardware.host_link
    return {
        "memory": point.memory_bytes,
        "host memory": point.host_bytes,
        "ssds": ssd.drives,
        "each reads": ssd.read_bytes_per_s // ssd.drives,
        "each writes": ssd.write_bytes_per_s // ssd.drives,
        "host link": link.to_gpu_bytes_per_s,
    }[name]


def axis_text(point: Point, name: str) -> str:
    """Return a point's value on the axis `name`, one of `AXES`, for people."""
    value = _axis(point, name)
    if name == "ssds":
        return str(value)
    return format_bytes(value) if name in AXES[:2] else format_rate(value)


def axis_label(point: Point, name: str) -> str:
    """Return a point's value on the axis `name` with the name of that."""
    value = axis_text(point, name)
    if name == "ssds":
        return f"{value} SSD{'' if value == '1' else 's'}"
    words = {"each reads": "read by each SSD", "each writes": "written by each SSD"}
    return value if name == "memory" else f"{value} {words.get(name, name)}"


def varied(points: Sequence[Point]) -> list[str]:
    """Return the axes other than memory on which the points differ."""
    return [name for name in AXES[1:] if len({_axis(point, name) for point in points}) > 1]


def sweep_json(sweep: Sweep, sha256: str) -> dict[str, Any]:
    """Return a sweep as JSON has it: bytes, bytes per second, ns and shares."""
    return {
        "trace": {"sha256": sha256},
        "policy": sweep.policy,
        "ideal_ns": sweep.ideal_ns,
        "peak_bytes": sweep.peak_bytes,
        "rows": flat_rows(sweep),
    }


def print_csv(sweep: Sweep) -> None:
    """Print the rows of a sweep as CSV with a line of names, on stdout."""
    rows = flat_rows(sweep)
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def flat_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return each row of a sweep as one level of stable keys; what does not apply is None.

    The SSD's rates are of all drives together. `plan_of` is the number of the row, from 0, whose
    point the plan was found for.
    """
    number = {row.point.amounts: n for n, row in reversed(list(enumerate(sweep.rows)))}
    return [
        _point_cells(row.point) | _outcome_cells(row.outcome) | {
            "ideal_ns": sweep.ideal_ns,
            "least_bytes": row.least_bytes,
            "least_is_floor": row.least_is_floor,
            "reason": row.reason,
            "plan_of": None if row.plan_of is None else number[row.plan_of.amounts],
            "at_its_rates": row.at_its_rates,
        }
        for row in sweep.rows
    ]  # fmt: skip


def _point_cells(point: Point) -> dict[str, Any]:
    ssd, link = point.hardware.ssd, point.hardware.host_link
    return {
        "memory_bytes": point.memory_bytes,
        "host_bytes": point.host_bytes,
        "drives": ssd.drives,
        "ssd_read_bytes_per_s": ssd.read_bytes_per_s,
        "ssd_write_bytes_per_s": ssd.write_bytes_per_s,
        "to_host_bytes_per_s": link.to_host_bytes_per_s,
        "to_gpu_bytes_per_s": link.to_gpu_bytes_per_s,
    }


def _outcome_cells(found: Outcome | None) -> dict[str, Any]:
    """Return the figures of an outcome; those of what it has in it are named after both."""
    cells: dict[str, Any] = {}
    for name in _OUTCOME:
        outer, _, inner = name.partition(".")
        value = None if found is None else getattr(found, outer)
        value = getattr(value, inner) if inner and value is not None else value
        cells[inner if outer == "stall" else name.replace(".", "_")] = value
    return cells


_OUTCOME: Final = (
    "step_ns", "slowdown", "lower_bound_ns", "gap", "stall.late_prefetch_ns",
    "stall.bandwidth_ns", "stall.memory_ns", "peak_bytes", "ssd.to_tier_bytes",
    "ssd.to_gpu_bytes", "ssd.dropped_bytes", "host.to_tier_bytes", "host.to_gpu_bytes",
    "host.dropped_bytes", "ssd_write_bytes", "ssd_days", "policy", "seconds", "solver", "status",
)  # fmt: skip
