"""Error messages of commands, as one sentence without a traceback, and their exit codes."""

from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from cru.errors import InputError, RunError, printable

FAILED = 1  # the run started and could not continue
USER_ERROR = 2
INTERRUPTED = 130  # the code of a shell for a command that Ctrl-C ended
_UsageError: Any = typer.BadParameter.__base__  # of click, which typer includes
_OTHER_NAMES = {"duplicates": "average", "late": "drop_late"}  # Python arguments whose option has another name


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
        if isinstance(error, InputError):
            return " ".join(error.render(option_names(self.get_command(ctx, ctx.invoked_subcommand))).split())
        return " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())


def print_usage_error(error: Any) -> NoReturn:
    """Print a usage error, such as a missing option, as one line, and exit. A group without command prints its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    message = " ".join(error.format_message().split()).rstrip(".")
    message += "" if message.endswith("?") else "."
    command = error.ctx.command_path if error.ctx else "cru"
    typer.secho(f"cru: {printable(message)} See `{command} --help`.", fg="red", err=True)
    raise typer.Exit(USER_ERROR)


def option_names(command: Any) -> dict[str, str]:
    """Map the Python arguments that are options of a command, or of the commands of a group, to those options."""
    names: dict[str, str] = {}
    for below in getattr(command, "commands", {}).values():
        names |= option_names(below)
    options = {param.name: param.opts[0] for param in command.params if param.param_type_name == "option"}
    names |= {name.rstrip("_"): option for name, option in options.items()}
    return names | {name: options[other] for name, other in _OTHER_NAMES.items() if other in options}
