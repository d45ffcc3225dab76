"""What `teraio plan --explain` prints: why a tensor moves, or does not."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from teraio.planner.units import format_bytes, format_ns
from teraio_cli.outputs import print_json

if TYPE_CHECKING:
    from teraio.planner.explain import Explanation, IdleRow, Move
    from teraio.planner.relief import Cost


def print_explanation(explanation: Explanation, *, as_json: bool) -> None:
    """Print an explanation on stdout: its idle intervals and one line on why, or JSON with both."""
    why = sentence(explanation)
    if as_json:
        print_json(asdict(explanation) | {"why": why})
        return
    name = explanation.label or "no name"
    size = format_bytes(explanation.nbytes)
    print(f"tensor {explanation.id}, {name}: {explanation.kind}, {size}, {explanation.uses} uses")
    for row in explanation.intervals:
        print(f"\nidle after op {row.after_op} {row.after_name}")
        for name, text in _facts(row, explanation.ranked):
            print(f"  {name:<14}{text}")
    print(f"\n{why}")


def sentence(explanation: Explanation) -> str:
    """Return in one line why the tensor moves or stays."""
    least = format_bytes(explanation.min_tensor_bytes)
    fixed = {
        "pinned": "stays: it is pinned to the device",
        "unused": "stays: no op of the step uses it",
        "never idle": "stays: it is never idle, as no op lies between its uses",
        "kept": "stays: `--keep` says so",
        "too small": f"stays: it takes less than {least} (`--min-tensor`)",
        "no tier": "stays: it may go to host memory only (`--never-ssd`), and there is none",
        "not over budget": "stays: it is idle only where memory is not over the budget",
    }
    if explanation.reason in fixed:
        return fixed[explanation.reason]
    if explanation.reason == "chosen":
        return _chosen(explanation)
    best = min(row.rank for row in explanation.intervals if row.rank is not None)
    place = f"ranks it {best} of {explanation.ranked}"
    return f"stays: the step fits without it; its transfer time per byte relieved {place}"


def _chosen(explanation: Explanation) -> str:
    moved = [row for row in explanation.intervals if row.move]
    best = max(moved, key=lambda row: row.relieved_bytes)
    if best.relieved_op is None:
        return "moves: other moves need the room"
    times = f" in {len(moved)} of its {len(explanation.intervals)} idle intervals"
    relieved = f"relieves {format_bytes(best.relieved_bytes)} at op {best.relieved_op}"
    return f"moves{times}: it {relieved}"


def _facts(row: IdleRow, ranked: int) -> list[tuple[str, str]]:
    turn = " of the next step" if row.next_step else ""
    facts = [
        ("until op", f"{row.needed_by_op} {row.needed_by_name}{turn}"),
        ("for", format_ns(row.idle_ns)),
        *((cost.tier, _cost(cost)) for cost in row.costs),
        ("over budget", f"{row.over_ops} ops"),
    ]
    if row.relieved_op is not None:
        facts.append(("relieves", format_bytes(row.relieved_bytes)))
    if row.rank is not None:
        facts.append(("rank", f"{row.rank} of {ranked}"))
    if row.move is None:
        return [*facts, ("stays", row.reason)]
    return [*facts, *_windows(row.move)]


def _cost(cost: Cost) -> str:
    write = f"written in {format_ns(cost.write_ns)}" if cost.write_ns else "no write"
    return f"{write}, read in {format_ns(cost.read_ns)}"


def _windows(move: Move) -> list[tuple[str, str]]:
    how = "" if move.write else ", a drop"
    return [
        (f"to {move.tier}", f"after op {move.after_op}, gone by {move.gone_by_op}{how}"),
        ("back", f"after op {move.back_after_op}, needed by {move.needed_by_op}"),
    ]
