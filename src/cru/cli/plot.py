"""``cru plot``: a picture of one series with its mean and bands."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.console import make_console, noting
from cru.cli.options import AllowCode, ModelFolder, as_length, find_own_code


def plot(
    model: ModelFolder,
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet file with the columns of the training table.")],
    series: Annotated[str | None, typer.Option(help="The id of the series; the first of the table without it.")] = None,
    horizon: Annotated[
        str | None, typer.Option(help="So far after the last reading; else a tenth of the span.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where it goes: .png, .svg or .pdf; SERIES.png by default.")] = None,
    allow_code: AllowCode = False,
) -> None:
    """Draw the readings of a series, the mean, the 50 and 90 % bands, and its gaps."""
    from cru.forecaster import Forecaster
    from cru.forecaster.plot import draw, one_series
    from cru.reporting.figures import check_path, save

    if out is not None:
        check_path(out)  # before the long part
    find_own_code(allow_code=allow_code)
    forecaster = Forecaster.load(model, allow_code=allow_code)
    readings, name = one_series(forecaster, table, series)
    console = make_console()
    with noting(console):
        figure = draw(forecaster, readings, horizon=as_length(horizon, forecaster))
    path = save(figure, out or Path(f"{name or 'series'}.png".replace("/", "-")))
    console.print(f"Picture: {path}", soft_wrap=True)
