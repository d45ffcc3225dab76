"""What `teraio compare` and `teraio sweep` print: tables, JSON and CSV."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from teraio.planner.units import format_bytes, format_ns, format_rate
from teraio_cli.outputs import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teraio.planner.compare import Comparison
    from teraio.planner.compare import Row as PolicyRow
    from teraio.planner.outcome import Outcome
    from teraio.planner.points import Point
    from teraio.planner.sweep import Row, Sweep

_WAITS: Final = ("late prefetch>", "bandwidth>", "memory>")
_SSD: Final = ("ssd written>", "ssd read>")
_HOST: Final = ("host out>", "host back>")


def print_comparison(comparison: Comparison) -> None:
    """Print a row for each policy: its step, what that waits for, and what moves.

    Those with no plan follow with the reason.
    """
    host = bool(comparison.budget.host_bytes)
    columns = ("policy", "step>", "slowdown>", "above bound>", *_WAITS, *_SSD)
    columns += (*(_HOST if host else ()), "peak>", "planned in>", "by")
    rows = [_policy_row(comparison.ideal, host=host), _bound_row(comparison, len(columns))]
    rows[0][0], rows[0][3], rows[0][-2] = "ideal", "", ""
    rows += [_policy_row(row, host=host) for row in comparison.rows if row.outcome]
    print_table(columns, rows)
    missing = [(row.policy, row.reason) for row in comparison.rows if row.outcome is None]
    if missing:
        print()
        print_table(("no plan", "because"), missing)


def _policy_row(row: PolicyRow, *, host: bool) -> list[str]:
    found = _outcome(row)
    stall = found.stall
    return [
        row.policy,
        format_ns(found.step_ns),
        f"{found.slowdown:.3f}x",
        f"{found.gap:.1%}",
        *map(format_ns, (stall.late_prefetch_ns, stall.bandwidth_ns, stall.memory_ns)),
        *_moved(found, host=host),
        format_bytes(found.peak_bytes),
        f"{found.seconds:.2f} s",
        _how(row.policy, found),
    ]


def _how(asked: str, found: Outcome) -> str:
    """Return the policy whose plan it is, if that is another than `asked`, and its solver's."""
    chosen = "" if found.policy == asked else found.policy
    return " ".join(filter(None, (chosen, found.solver, found.status)))


def _bound_row(comparison: Comparison, width: int) -> list[str]:
    bound_ns = comparison.lower_bound_ns
    cells = ["lower bound", "not known", ""]
    if bound_ns is not None:
        slowdown = bound_ns / _outcome(comparison.ideal).step_ns
        cells = ["lower bound", format_ns(bound_ns), f"{slowdown:.3f}x"]
    return [*cells, *[""] * (width - len(cells))]


def _outcome(row: PolicyRow) -> Outcome:
    assert row.outcome is not None
    return row.outcome


def _moved(found: Outcome, *, host: bool) -> list[str]:
    tiers = (found.ssd, found.host) if host else (found.ssd,)
    return [format_bytes(n) for t in tiers for n in (t.to_tier_bytes, t.to_gpu_bytes)]


def comparison_json(comparison: Comparison, sha256: str) -> dict[str, Any]:
    """Return a comparison as JSON has it: bytes, ns and shares."""
    return {"trace": {"sha256": sha256}, **asdict(comparison)}


def print_sweep(sweep: Sweep) -> None:
    """Print a row for each point; only axes with more than one value have a column."""
    points = [row.point for row in sweep.rows]
    axes = [name for name in AXES if name == "memory" or len({_axis(p, name) for p in points}) > 1]
    host = any(point.host_bytes for point in points)
    worn = any(row.outcome and row.outcome.ssd_days is not None for row in sweep.rows)
    columns = [f"{name}>" for name in axes]
    columns += ["step>", "slowdown>", "lower bound>", "above bound>", *_SSD]
    columns += [*(_HOST if host else ()), *(["drives last>"] if worn else []), "peak>", ""]
    print_table(
        columns, [_point_row(row, axes, len(columns), host=host, worn=worn) for row in sweep.rows]
    )


def _point_row(row: Row, axes: Sequence[str], width: int, *, host: bool, worn: bool) -> list[str]:
    cells = [axis_text(row.point, name) for name in axes]
    found = row.outcome
    if found is None:
        return [*cells, *[""] * (width - len(cells) - 1), _lack(row)]
    return [
        *cells,
        format_ns(found.step_ns),
        f"{found.slowdown:.3f}x",
        format_ns(found.lower_bound_ns),
        f"{found.gap:.1%}",
        *_moved(found, host=host),
        *([_days(found)] if worn else []),
        format_bytes(found.peak_bytes),
        _origin(row),
    ]


def _lack(row: Row) -> str:
    if row.least_bytes is None:
        return row.reason
    return f"needs {format_bytes(row.least_bytes)}"


def _days(found: Outcome) -> str:
    return "" if found.ssd_days is None else f"{found.ssd_days:,.1f} days"


def _origin(row: Row) -> str:
    """Return the point that the plan was found for, by what it has less of."""
    if row.plan_of is None:
        return ""
    other = [axis_label(row.plan_of, name) for name in AXES if _differs(row, name)]
    return f"plan for {', '.join(other)}" + (", timed for that too" if row.at_its_rates else "")


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
    return value if name == "memory" else f"{name} {value}"


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
