"""The edge of the command line: what a user did wrong becomes one sentence and exit code 2, never a traceback."""

from typing import Any

import typer
from typer.core import TyperGroup

USER_ERROR = 2
INTERRUPTED = 130  # what a shell gives a command that Ctrl-C ended


class Boundary(TyperGroup):
    """A group of commands that speaks plainly about errors meant for the user."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; say in one sentence what was wrong with its input."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            typer.secho(f"cru: {_sentence(error)}", fg="red", err=True)
            raise typer.Exit(USER_ERROR) from None
        except KeyboardInterrupt:
            typer.echo("\ncru: interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:  # the operating system's own
        return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
    return " ".join(str(error).split())
