"""`teraio clean`: remove what killed runs left in an SSD folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from teraio_cli.outputs import print_json, say


def clean(
    folders: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Folders given to `--ssd`.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Remove what killed runs left in an SSD folder.

    A folder that a run still uses is kept, and so is anything that teraio did not make.
    """
    from teraio.executor.run_folder import clean_folder
    from teraio.planner.units import format_bytes

    found = [removed for folder in folders for removed in clean_folder(Path(folder))]
    if as_json:
        rows = [{"path": str(r.path), "freed_bytes": r.nbytes, "kept": r.kept} for r in found]
        print_json(rows)
        return
    for removed in found:
        if removed.kept:
            print(f"kept {removed.path}: {removed.kept}")
        else:
            print(f"removed {removed.path}: {format_bytes(removed.nbytes)} freed")
    if not found:
        say("nothing to clean")
