"""Pictures of comparisons and sweeps, drawn with matplotlib: an optional package.

The same data gives the same file, byte for byte.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from teraio.planner.units import format_bytes
from teraio.profiler.errors import PackageMissingError, UsageError
from teraio_cli.comparison_tables import axis_label, varied
from teraio_cli.outputs import open_output, require_output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from teraio.planner.compare import Comparison
    from teraio.planner.sweep import Row, Sweep

FORMATS: Final = ("png", "svg", "pdf")
"""The formats of pictures, each also the ending of its files."""

_WAITS: Final = {
    "late_prefetch_ns": ("waits: prefetch late", "#0072b2"),
    "bandwidth_ns": ("waits: bandwidth", "#e69f00"),
    "memory_ns": ("waits: memory", "#cc79a7"),
}
"""The colours are those of Okabe and Ito, which people with any colour vision can tell apart."""

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS: Final = ("o", "s", "^", "D", "v")
_GREY: Final = "#b0b0b0"
_WHOLE_GIB: Final = 2
"""Less memory than so many GiB is shown in MiB."""

_LEGEND_ROWS: Final = 12
"""Lines of a legend beside the data; a longer one goes below it."""

_LEGEND_COLUMNS: Final = 2
_LEGEND_ROW_INCHES: Final = 0.22

_SETTINGS: Final[Any] = {"svg.hashsalt": "teraio", "svg.fonttype": "none", "font.size": 10}


def require_picture(target: str | None, *, force: bool, inputs: Iterable[str | None] = ()) -> None:
    """Check that a picture can be written, before the work that fills it; None is no picture.

    Raises UsageError for an unknown ending, PackageMissingError without matplotlib, and what
    `require_output` raises.
    """
    if target is None:
        return
    _format_of(target)
    if find_spec("matplotlib") is None:
        msg = "a picture needs matplotlib, which is not installed"
        raise PackageMissingError(msg, hint="pip install 'teraio[plot]'")
    require_output(target, force=force, inputs=inputs)


def draw_comparison(comparison: Comparison, target: str, *, force: bool) -> None:
    """Draw a bar for each policy with a plan: its slowdown, and what the step waits for.

    Raises what `require_picture` and `open_output` raise.
    """
    rows = [row for row in comparison.rows if row.outcome]
    figure, axes = _figure(9.0, 1.7 + 0.42 * max(len(rows), 3))
    ideal = comparison.ideal.outcome
    assert ideal is not None
    names = [row.policy for row in rows]
    outcomes = [row.outcome for row in rows if row.outcome]
    axes.barh(names, [1.0] * len(rows), color=_GREY, label="ideal step")
    left = [1.0] * len(rows)
    for cause, (label, colour) in _WAITS.items():
        shares = [getattr(found.stall, cause) / ideal.step_ns for found in outcomes]
        axes.barh(names, shares, left=left, color=colour, label=label)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    for index, found in enumerate(outcomes):
        axes.annotate(
            f"{found.slowdown:.2f}x", (left[index], index), (4, 0), va="center",
            textcoords="offset points",
        )  # fmt: skip
    bound = (comparison.lower_bound_ns or ideal.step_ns) / ideal.step_ns
    axes.axvline(bound, color="black", linestyle="--", label=f"lower bound, {bound:.2f}x")
    axes.set_xlim(0, max([*left, bound]) * 1.1)
    axes.invert_yaxis()
    axes.set_xlabel("step time / ideal step time")
    axes.set_title(f"Policies in {format_bytes(comparison.budget.memory_bytes)} of device memory")
    _legend(axes, 5)
    _save(figure, target, force=force)


def draw_sweep(sweep: Sweep, target: str, *, force: bool) -> None:
    """Draw step time over memory: a line for each combination of the other axes.

    Its lower bounds are dashed, in the same colour. Raises what `require_picture` and
    `open_output` raise.
    """
    figure, axes = _figure(9.0, 5.0)
    lines = _lines(sweep)
    unit, scale = _unit(max(row.point.memory_bytes for row in sweep.rows))
    styles = cycle((colour, marker) for marker in _MARKERS for colour in _COLOURS)
    for (label, rows), (colour, marker) in zip(lines.items(), styles, strict=False):
        rows = sorted(rows, key=lambda row: row.point.memory_bytes)
        outcomes = [row.outcome for row in rows if row.outcome]
        memory = [row.point.memory_bytes / scale for row in rows if row.outcome]
        steps = [found.step_ns / 10**9 for found in outcomes]
        bounds = [found.lower_bound_ns / 10**9 for found in outcomes]
        axes.plot(memory, steps, color=colour, marker=marker, label=label or "predicted step")
        axes.plot(memory, bounds, color=colour, linestyle="--", linewidth=1, alpha=0.7)
    axes.plot([], [], color="black", linestyle="--", linewidth=1, label="lower bound")
    ideal = sweep.ideal_ns / 10**9
    axes.axhline(ideal, color=_GREY, linestyle=":", label="ideal step")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"device memory, {unit}")
    axes.set_ylabel("step time, s")
    missing = sum(row.outcome is None for row in sweep.rows)
    lack = f"; {missing} of {len(sweep.rows)} points do not fit" if missing else ""
    axes.set_title(f"Predicted step by memory{lack}")
    axes.grid(alpha=0.3)
    _legend(axes, len(lines) + 2)
    _save(figure, target, force=force)


def _lines(sweep: Sweep) -> dict[str, list[Row]]:
    """Return the rows of each combination of the axes other than memory, by its name."""
    names = varied([row.point for row in sweep.rows])
    lines: dict[str, list[Row]] = {}
    for row in sweep.rows:
        label = ", ".join(axis_label(row.point, name) for name in names)
        lines.setdefault(label, []).append(row)
    return lines


def _unit(nbytes: int) -> tuple[str, int]:
    return ("GiB", 2**30) if nbytes >= _WHOLE_GIB * 2**30 else ("MiB", 2**20)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        return figure, axes


def _legend(axes: Any, entries: int) -> None:
    """Put the legend beside the data, or a long one, which would squeeze that, below it."""
    if entries <= _LEGEND_ROWS:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return
    rows = -(-entries // _LEGEND_COLUMNS)
    figure = axes.figure
    figure.set_figheight(figure.get_figheight() + rows * _LEGEND_ROW_INCHES)
    figure.legend(loc="outside lower center", frameon=False, ncols=_LEGEND_COLUMNS)


def _save(figure: Any, target: str, *, force: bool) -> None:
    from matplotlib import rc_context

    kind = _format_of(target)
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with rc_context(_SETTINGS), open_output(target, force=force) as stream:
        figure.savefig(stream, format=kind, dpi=150, metadata=undated)


def _format_of(target: str) -> str:
    kind = Path(target).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        msg = f"a picture cannot be written as `{target}`: the ending says in which format"
        raise UsageError(msg, hint=f"name it with one of {', '.join(f'.{e}' for e in FORMATS)}")
    return kind
