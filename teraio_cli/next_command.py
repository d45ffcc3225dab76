"""The line that each command ends with: what to type next."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Final

from teraio_cli.outputs import STDIO

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_FLAGS: Final = ("--json", "--csv", "--force", "--or-minimum")
"""The options of planning commands that take no value."""


def named(file: str, placeholder: str) -> str:
    """Return a file as the next command names it: `placeholder` for a pipe."""
    return placeholder if file == STDIO else shlex.quote(file)


def words_again(trace: str, drop: Collection[str], instead: Mapping[str, str] | None = None) -> str:
    """Return the trace and the options that were typed, quoted, for another command.

    Left out are the options `drop`; a list that an option in `instead` has is replaced by what is
    there.
    """
    again = [named(trace, "TRACE")]
    for option, value in _options(sys.argv[2:]):
        if option in drop:
            continue
        again.append(option)
        if value is not None:
            choice = (instead or {}).get(option) if "," in value else None
            again.append(choice or shlex.quote(value))
    return " ".join(again)


def _options(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return the options among `words`, each with its value or None for a flag."""
    found: list[tuple[str, str | None]] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        if not word.startswith("-") or word == STDIO:
            continue
        option, equals, value = word.partition("=")
        if option in _FLAGS:
            found.append((option, None))
        else:
            found.append((option, value if equals else next(rest, "")))
    return found


def after_plan(
    plan: str, fingerprint: str, command: Sequence[str] = (), *, otherwise: str = "inspect PLAN"
) -> str:
    """Return what to say after a plan: how to run it, or for one that cannot be run what else.

    `otherwise` is a command, in which `PLAN` stands for the plan.
    """
    file = named(plan, "PLAN")
    if fingerprint:
        return f"\nnext: teraio run {file} {shlex.join(command) or 'SCRIPT'}"
    return (
        "\nthe trace has no fingerprint, so this plan cannot be run\n"
        f"next: teraio {otherwise.replace('PLAN', file)}"
    )
