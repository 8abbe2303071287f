"""``cru forecast``: forecasts of every series after its last observation."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import AllowCode, Horizon, Level, ModelFolder, Observations, TableFile, as_time, load_forecaster
from cru.cli.printing import make_console, print_warnings


def forecast(
    model: ModelFolder,
    horizon: Horizon,
    out: TableFile,
    table: Observations = None,
    every: Annotated[str | None, typer.Option(help="Step between forecasts. Default: about the typical gap.")] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="Table file with the id, time and known columns of the future. See `cru fit --known`."),
    ] = None,
    level: Level = None,
    allow_code: AllowCode = False,
) -> None:
    """Forecast every series and write a long table: id, time, variable, mean, median, std and intervals."""
    from cru.data.table_files import write_file
    from cru.forecaster.table_io import check_ending

    check_ending(out)
    forecaster = load_forecaster(model, allow_code=allow_code)
    steps = {"horizon": as_time(horizon, forecaster.clock_), "every": as_time(every, forecaster.clock_)}
    console = make_console()
    with print_warnings(console):
        predictions = forecaster.forecast(table, **steps, level=level or [50, 90], known=known)
        write_file(predictions, out)
    console.print(f"{len(predictions):,} rows in {out}.", soft_wrap=True)
