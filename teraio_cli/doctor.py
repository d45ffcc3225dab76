"""`teraio doctor`: what works on this machine, found by doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from teraio.profiler.errors import StorageError
from teraio_cli.outputs import print_json, print_table, say

if TYPE_CHECKING:
    from teraio_cli.finding import Finding
    from teraio_cli.folder_probe import Folder


def doctor(
    folders: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR]...", help="Folders to try as SSD storage."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what works on this machine, found by doing it.

    Ends with 74 if a folder that was named cannot be used, and with 0 otherwise.
    """
    from teraio_cli.folder_probe import probe_folder
    from teraio_cli.probes import probe_machine

    findings = list(probe_machine())
    tried = [probe_folder(folder) for folder in folders or []]
    if as_json:
        print_json({"machine": _dicts(findings), "folders": _dicts(tried)})
    else:
        _print_findings(findings, tried)
    if not all(folder.ok for folder in tried):
        raise typer.Exit(StorageError.exit_code)
    if tried:
        say(f"\nnext: teraio bench {tried[0].path} -o hardware.json")
    else:
        say("\nnext: teraio profile -o trace.parquet SCRIPT")


def _dicts(items: list[Finding] | list[Folder]) -> list[dict[str, object]]:
    return [asdict(item) for item in items]


def _print_findings(findings: list[Finding], folders: list[Folder]) -> None:
    rows = [(f.name, "ok" if f.ok else "missing", f.found, f.advice) for f in findings]
    rows += [(f.path, "ok" if f.ok else "unusable", _describe(f), f.advice) for f in folders]
    print_table(("what", "state", "found", "advice"), rows)


def _describe(folder: Folder) -> str:
    from teraio.planner.units import format_bytes

    if not folder.ok:
        return folder.found
    return f"{folder.found}; {folder.file_system}, {format_bytes(folder.free_bytes)} free"
