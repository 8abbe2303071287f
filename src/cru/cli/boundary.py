"""The edge of the command line: what went wrong becomes one sentence and an exit code, never a traceback."""

import re
from typing import Any

import typer
from typer.core import TyperGroup

from cru.errors import RunError, printable

FAILED = 1  # began well and could not go on
USER_ERROR = 2
INTERRUPTED = 130  # what a shell gives a command that Ctrl-C ended
_OPTIONS = "id|time|values|variable|model|seed|horizon|every|level|ahead|out|series|state"  # as in Python, as here


class Boundary(TyperGroup):
    """A group of commands that speaks plainly about errors meant for the user."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; say in one sentence what was wrong."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            typer.secho(f"cru: {printable(_sentence(error))}", fg="red", err=True)
            raise typer.Exit(USER_ERROR) from None
        except RunError as error:
            typer.secho(f"cru: {printable(_sentence(error))}", fg="red", err=True)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt as stop:
            said = str(stop) or "nothing half-written was left behind."
            typer.echo(f"\ncru: interrupted; {printable(said)}", err=True)
            raise typer.Exit(INTERRUPTED) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:  # the operating system's own
        return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
    return re.sub(f"`({_OPTIONS})`", r"--\1", " ".join(str(error).split()))
