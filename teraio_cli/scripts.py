"""How `profile` and `run` take the user's script from the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

from typer.core import TyperCommand, TyperOption

from teraio.profiler.errors import UsageError
from teraio_cli.outputs import say

SCRIPT_CONTEXT: Final = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
"""Everything from the script's name on belongs to the script."""


class PlanFirst(TyperCommand):
    """A command whose first argument is a plan and whose options may come before or after it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Turn the first argument into the hidden option `--plan`."""
        at = self._first_argument(args)
        if at is not None:
            args = [*args[:at], "--plan", args[at], *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show the plan as the argument it is."""
        return ["PLAN", *super().collect_usage_pieces(ctx)]

    def _first_argument(self, args: list[str]) -> int | None:
        takes_value = {
            name
            for option in self.params
            if isinstance(option, TyperOption) and not option.is_flag
            for name in option.opts
        }
        at = 0
        while at < len(args):
            if args[at] == "-" or not args[at].startswith("-"):
                return at
            at += 2 if args[at] in takes_value else 1
        return None


def script_of(words: list[str], *, is_module: bool) -> Any:
    """Return the Script that the words after the options name.

    Raises UsageError if there are none.
    """
    from teraio.profiler.script import Script

    if not words:
        msg = "no script is named"
        raise UsageError(msg, hint="end the command with `SCRIPT [ARGS]` or `-m MODULE [ARGS]`")
    return Script(words[0], tuple(words[1:]), is_module=is_module)


@contextmanager
def stdout_for(target: str) -> Iterator[IO[bytes] | None]:
    """While a script runs whose `-o` is `-`, keep stdout for the data: its prints go to stderr.

    Yields the real stdout then, and None otherwise.
    """
    if target != "-":
        yield None
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "wb") as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def say_how_it_ended(exit_code: int) -> None:
    """Say in a line that a script failed or was stopped."""
    ends = {130: "interrupted", 143: "terminated"}
    say(
        f"\nthe script was {ends[exit_code]}"
        if exit_code in ends
        else f"\nthe script ended with exit code {exit_code}"
    )


def quiet_torch() -> None:
    """Keep the notes of torch's profiler off the script's stderr; before torch is imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def require_torch() -> None:
    """Raise UsageError with the way to install torch if it is not there."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        msg = f"torch cannot be imported: {error}"
        raise UsageError(msg, hint="install it with `pip install 'teraio[train]'`") from None
