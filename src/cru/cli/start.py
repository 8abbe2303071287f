"""``cru`` without a command: the first three commands for a new user."""

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
    """The group of all commands. A call without a command prints the first three for a new user."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a call. Print `START` if there are none."""
        if not args:
            typer.echo(START)
            ctx.exit()
        return super().parse_args(ctx, args)
