"""``cru`` without a command: the first three commands that a new user wants."""

from typing import Any

import typer

from cru.cli.error_handling import ErrorHandlingGroup

START = """Fit a table of irregular observations, forecast it, and look at it:

  cru fit weather.csv --id station --time date --out model   # trains
  cru forecast model --horizon 14D --out forecast.csv        # means, intervals
  cru plot model weather.csv                                 # gaps and forecast

`cru data sample weather --out weather.csv` writes this table, to try it.
`cru --help` lists all commands."""


class CommandGroup(ErrorHandlingGroup):
    """All commands. Without a command, print the first three that a new user wants."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a call."""
        if not args:
            typer.echo(START)
            ctx.exit()
        return super().parse_args(ctx, args)
