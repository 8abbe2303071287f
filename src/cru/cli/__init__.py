"""The ``cru`` command. Each command is one file, and imports heavy libraries only when it runs."""

from importlib.util import find_spec
from typing import Annotated

if not (find_spec("typer") and find_spec("rich")):
    raise SystemExit("cru: the command needs typer and rich: pip install 'cru[cli]'.")

import typer

from cru.cli import data
from cru.cli.anomalies import anomalies
from cru.cli.backtest import backtest
from cru.cli.compare import compare
from cru.cli.doctor import doctor
from cru.cli.figure import figure
from cru.cli.fit import fit
from cru.cli.forecast import forecast
from cru.cli.impute import impute
from cru.cli.list import list_
from cru.cli.models import models
from cru.cli.plot import plot
from cru.cli.report import report
from cru.cli.reproduce import reproduce
from cru.cli.run import run
from cru.cli.start import CommandGroup
from cru.cli.stream import stream
from cru.cli.table import table
from cru.cli.view import view

app = typer.Typer(
    name="cru",
    cls=CommandGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(fit)
app.command()(forecast)
app.command()(impute)
app.command()(plot)
app.command()(backtest)
app.command()(compare)
app.command()(view)
app.command()(anomalies)
app.command()(run)
app.command("list")(list_)
app.command()(reproduce)
app.command()(table)
app.command()(figure)
app.command()(report)
app.command()(doctor)
app.add_typer(data.app, name="data")
app.command()(models)
app.command()(stream)


def _print_version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        typer.echo(f"cru {version('cru')}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Impute and forecast irregular time series, and run the experiments of the Continuous Recurrent Unit (CRU)."""
