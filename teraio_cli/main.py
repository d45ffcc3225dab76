"""The `teraio` command: its subcommands, and how it ends.

Nothing heavy (torch, pulp, pyarrow) is imported before a subcommand needs it.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from teraio.profiler.errors import StorageError, StuckError, TeraioError
from teraio_cli.bench import bench
from teraio_cli.clean import clean
from teraio_cli.compare import compare
from teraio_cli.doctor import doctor
from teraio_cli.export import export
from teraio_cli.import_ import import_
from teraio_cli.inspect import inspect
from teraio_cli.outputs import say
from teraio_cli.plan import plan
from teraio_cli.profile import profile
from teraio_cli.run import run
from teraio_cli.scripts import SCRIPT_CONTEXT, PlanFirst
from teraio_cli.simulate import simulate
from teraio_cli.sweep import sweep

CLOSED_PIPE: Final = 141
"""128 + SIGPIPE: what a shell reports for a program whose reader went away."""

MOST_SAID: Final = 4000
"""Characters of an error that are shown; names in a file may be of any length."""


class Commands(TyperGroup):
    """The group of subcommands; a reader that went away ends it quietly."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen subcommand and flush what it wrote."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            _give_up_stdout()
            raise typer.Exit(CLOSED_PIPE) from None
        except OSError as error:
            if error.errno not in _NO_ROOM or ctx.invoked_subcommand in _OF_SCRIPTS:
                raise
            _give_up_stdout()
            msg = f"cannot write to stdout: {error.strerror}"
            raise StorageError(msg, hint="make room there, or send it elsewhere") from error


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Of files with names the commands explain such errors themselves; what is left is stdout."""

_OF_SCRIPTS: Final = ("profile", "run")
"""Commands whose errors may be those of a script, which has its own traceback."""


def _give_up_stdout() -> None:
    # The interpreter flushes stdout once more at exit and would complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="teraio",
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(context_settings=SCRIPT_CONTEXT)(profile)
app.command()(plan)
app.command(cls=PlanFirst, context_settings=SCRIPT_CONTEXT)(run)
app.command()(inspect)
app.command()(simulate)
app.command()(compare)
app.command()(sweep)
app.add_typer(import_, name="import")
app.command()(export)
app.command()(bench)
app.command()(doctor)
app.command()(clean)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"teraio {version('teraio')}")
        raise typer.Exit


@app.callback()
def teraio(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train models that do not fit their GPU: profile a step, plan what moves, run the plan.

    Data goes to stdout and everything else to stderr. `-` reads and writes pipes.
    """


def explain(error: TeraioError) -> None:
    """Print an error and its hint on stderr, no more of it than one may want to read."""
    text = str(error)
    rest = f"... ({len(text)} characters)" if len(text) > MOST_SAID else ""
    say(f"error: {text[:MOST_SAID]}{rest}")
    if error.hint:
        say(f"\nhint: {error.hint}")


def main() -> None:
    """Run the command line; ends the process with a documented exit code."""
    command = typer.main.get_command(app)
    try:
        command(prog_name="teraio")
    except TeraioError as error:
        explain(error)
        if isinstance(error, StuckError):
            _leave(error.exit_code)
        raise SystemExit(error.exit_code) from None


def _leave(exit_code: int) -> NoReturn:
    """End the process without what waits for its threads, and while all of its memory is there.

    The stuck request may still be carried out.
    """
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(exit_code)
