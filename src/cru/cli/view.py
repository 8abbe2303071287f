"""``cru view``: an HTML page of a table and its model."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import AllowCode, Level, ModelFolder, Observations, as_time, load_forecaster
from cru.cli.printing import make_console, print_warnings


def view(
    model: ModelFolder,
    table: Observations = None,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("view.html"),
    horizon: Annotated[
        str | None,
        typer.Option(
            help="Length of the forecast. Default: a tenth of the typical time span of a series, or 5 median gaps if "
            "those are longer."
        ),
    ] = None,
    level: Level = None,
    allow_code: AllowCode = False,
) -> None:
    """Write one self-contained HTML page of a table: series, intervals, gaps, forecasts and scores."""

    forecaster = load_forecaster(model, allow_code=allow_code)
    console = make_console()
    with print_warnings(console):
        path = forecaster.view(table, out=out, horizon=as_time(horizon, forecaster.clock_), level=level or (50, 90))
    console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB. Open it in any browser.", soft_wrap=True)
