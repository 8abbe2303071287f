"""Error messages of commands, as one sentence without a traceback, and their exit codes."""

from collections.abc import Callable
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from cru.errors import RunError, full_message, printable

FAILED = 1  # the run started and could not continue
USER_ERROR = 2
INTERRUPTED = 130  # the code of a shell for a command that Ctrl-C ended
_UsageError: Any = typer.BadParameter.__base__  # of click, which typer includes


class ErrorHandlingGroup(TyperGroup):
    """A group of commands that prints the errors of users without a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before the command. Print an error as one line."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            print_usage_error(error)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Print an error as one sentence."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            print_usage_error(error)
        except (ValueError, OSError) as error:
            typer.secho(f"cru: {printable(self._sentence(error, ctx))}", fg="red", err=True)
            raise typer.Exit(USER_ERROR) from None
        except RunError as error:
            typer.secho(f"cru: {printable(self._sentence(error, ctx))}", fg="red", err=True)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt as stop:
            result = str(stop) or "no incomplete file is left."
            typer.echo(f"\ncru: interrupted; {printable(result)}", err=True)
            raise typer.Exit(INTERRUPTED) from None

    def _sentence(self, error: Exception, ctx: Any) -> str:
        """Render an error with the names of the options of this command, followed by its notes."""
        if isinstance(error, OSError) and error.strerror:  # from the operating system
            return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
        return full_message(error, option_names(self.get_command(ctx, ctx.invoked_subcommand)))


def print_usage_error(error: Any) -> NoReturn:
    """Print a usage error, such as a missing option, as one line, and exit. A group without command prints its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message.replace(": Value error, ", ": ")  # words of pydantic, which typer calls
    message += "" if message.endswith("?") else "."
    command = error.ctx.command_path if error.ctx else "cru"
    typer.secho(f"cru: {printable(message)} See `{command} --help`.", fg="red", err=True)
    raise typer.Exit(USER_ERROR)


def as_command(function: Callable[..., None]) -> Any:
    """Return a function with annotated options as a command."""
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return get_command(app)


def option_names(command: Any) -> dict[str, str]:
    """Map the Python arguments that are options of a command, or of the commands of a group, to those options.

    An option with a value has two entries: {"seed": "--seed", "seed=": "--seed "}. A flag has the first only.
    """
    names: dict[str, str] = {}
    for below in getattr(command, "commands", {}).values():
        names |= option_names(below)
    for param in command.params:
        if param.param_type_name == "option":
            name = param.name.rstrip("_")
            names |= {name: param.opts[0]} | ({} if param.is_flag else {f"{name}=": f"{param.opts[0]} "})
    return names
