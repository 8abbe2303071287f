"""``cru plot``: a figure of one series with its mean and prediction intervals."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import AllowCode, ModelFolder, as_time, load_forecaster
from cru.cli.printing import make_console, print_warnings


def plot(
    model: ModelFolder,
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet file with the columns of the training table.")],
    series: Annotated[str | None, typer.Option(help="The id of the series. Default: the first of the table.")] = None,
    horizon: Annotated[
        str | None, typer.Option(help="Length of the forecast. Default: a tenth of the time shown.")
    ] = None,
    last: Annotated[str | None, typer.Option(help='Show only the end of the series, such as its last "90D".')] = None,
    variable: Annotated[str | None, typer.Option(help="Draw only this variable.")] = None,
    components: Annotated[
        bool,
        typer.Option("--components", help="Draw one variable and, below it, the components of its mean."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Output file: .png, .svg or .pdf. Default: SERIES.png.")] = None,
    allow_code: AllowCode = False,
) -> None:
    """Draw the observations of a series, the mean, the 50 and 90 % intervals, and the gaps."""
    from cru.forecaster.plot import draw, one_series
    from cru.reporting.figures import check_path, save

    if out is not None:
        check_path(out)  # before the long computation
    forecaster = load_forecaster(model, allow_code=allow_code)
    observations, name = one_series(forecaster, table, series)
    console = make_console()
    with print_warnings(console):
        figure = draw(
            forecaster,
            observations,
            horizon=as_time(horizon, forecaster.clock_),
            last=as_time(last, forecaster.clock_),
            variable=variable,
            components=components,
        )
    path = save(figure, out or Path(f"{name or 'series'}.png".replace("/", "-")))
    console.print(f"Picture: {path}", soft_wrap=True)
