"""Makes `docs/compatibility.md` from the outcomes of the suite.

`python tests/compat/table.py` writes the page from `outcomes.json`; with `--run [NAME]...` it runs
the programs whose names begin so, all by default, and keeps their outcomes first.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from suite import PROGRAMS, Program  # noqa: E402

OUTCOMES = HERE / "outcomes.json"
HEAD = HERE / "page.md"
PAGE = HERE.parents[1] / "docs" / "compatibility.md"

COLUMNS = "| program | | memory | moved | other steps | left | |\n|---|---|---|---|---|---|---|\n"


def read_outcomes() -> dict[str, dict[str, Any]]:
    """Return the outcomes that are kept, by the names of the programs."""
    outcomes: dict[str, dict[str, Any]] = json.loads(OUTCOMES.read_text())
    return outcomes


def page(outcomes: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    parts = [HEAD.read_text()]
    for group, programs in groupby(PROGRAMS, key=lambda program: program.group):
        rows = "".join(row(program, outcomes[program.name]) for program in programs)
        parts.append(f"## {group}\n\n{COLUMNS}{rows}")
    return "\n".join(parts)


def row(program: Program, found: dict[str, Any]) -> str:
    """Return the line of a program."""
    if found["outcome"] == "refused":
        cells = ["", "", "", "", f"**refused**: {program.refused}"]
    else:
        moved = f"{found['moved_bytes'] / 2**20:.1f} MiB"
        share = found["budget_bytes"] / found["peak_bytes"]
        memory = f"{found['peak_bytes'] / 2**20:.1f} MiB, {share:.0%}"
        left = f"{found['not_executed']} of {found['planned']}" if found["not_executed"] else ""
        cells = [
            memory,
            moved,
            ", ".join(map(str, found["differing"])),
            left,
            remark(program, found),
        ]
    return "| " + " | ".join([f"`{program.name}`", program.about, *cells]) + " |\n"


def remark(program: Program, found: dict[str, Any]) -> str:
    """Return what else there is to say."""
    said = [program.note] if program.note else []
    if found["over_budget_ops"]:
        said.append(f"over the budget at {found['over_budget_ops']} ops")
    if program.stays:
        said.append("**resident**: its memory is shared with others, so it stays")
    return "; ".join(said)


def main() -> None:
    """Write the page, after a run if one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", nargs="*", metavar="NAME", help="those whose names begin so")
    wanted = parser.parse_args().run
    outcomes = read_outcomes() if OUTCOMES.exists() else {}
    if wanted is not None:
        outcomes |= run(wanted)
    known = {program.name: outcomes[program.name] for program in PROGRAMS}
    lines = (f"{json.dumps(name)}: {json.dumps(found)}" for name, found in known.items())
    OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    PAGE.write_text(page(known))


def run(wanted: list[str]) -> dict[str, dict[str, Any]]:
    """Run the programs whose names begin with one of those wanted, and return the outcomes."""
    from runner import differing, outcome_of, summary

    found = {}
    for program in PROGRAMS:
        if wanted and not program.name.startswith(tuple(wanted)):
            continue
        with TemporaryDirectory() as home:
            outcome = outcome_of(program, Path(home))
            assert not differing(outcome.plain, outcome.profiled), program.name
            assert program.refused or not differing(outcome.plain, outcome.planned), program.name
        found[program.name] = summary(outcome)
        print(program.name, found[program.name], flush=True)
    return found


if __name__ == "__main__":
    main()
