"""``cru backtest``: forecasts of the past of a table, compared with the observations."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cru.cli.options import AllowCode, Between, Cuts, Jobs, Level, ModelFolder, as_cuts, as_length, find_own_code
from cru.cli.printing import make_console, print_warnings
from cru.cli.scores import print_errors, print_scores, wide_rows

MICROSECONDS = 3.6e9  # in an hour


def backtest(
    model: ModelFolder,
    horizon: Annotated[
        str, typer.Option(help='Longest lead time of the predictions: "30D", "6h", or a number if times are numbers.')
    ],
    table: Annotated[Path | None, typer.Argument(help="Observations. Default: the training table.")] = None,
    every: Between = None,
    cuts: Cuts = "5",
    refit: Annotated[
        bool,
        typer.Option(
            "--refit", help="Fit a new model to the observations before each cut. Otherwise, scores can be too good."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file for the predictions: .csv or .parquet. If times are dates, lead times are in hours."
        ),
    ] = None,
    level: Level = None,
    n_jobs: Jobs = 1,
    allow_code: AllowCode = False,
) -> None:
    """Cut every series at several times, predict the observations after each cut, and score model and naive models."""
    from cru.data.table_files import write_file
    from cru.forecaster import Forecaster
    from cru.forecaster.table_io import check_ending

    if out is not None:
        check_ending(out)
    find_own_code(allow_code=allow_code)
    forecaster = Forecaster.load(model, allow_code=allow_code)
    steps = {"horizon": as_length(horizon, forecaster), "every": as_length(every, forecaster)}
    chosen, console = as_cuts(cuts, forecaster.clock_), make_console()
    with print_warnings(console):
        found = forecaster.backtest(table, **steps, cuts=chosen, refit=refit, level=level or [50, 90], n_jobs=n_jobs)
        if out is not None:
            write_file(_in_hours(found.predictions), out)
    keys = ("variable", "lead")
    rows = wide_rows(found.comparison.table(keys), keys)
    print_errors(console, rows, "Mean absolute error, in the units of the variables", ".4g")
    title = "All values, in standard deviations" if len(forecaster.names_) > 1 else "All values"
    print_scores(console, found.comparison.table(()), title)
    where = f" in {out}" if out is not None else ""
    console.print(f"{len(found.predictions):,} predictions{where}.", soft_wrap=True)
    if table is None and not refit:
        console.print(
            "The model was fitted to this table, so its scores can be too good: use --refit, or another table.",
            soft_wrap=True,
        )


def _in_hours(predictions: Any) -> Any:
    """Convert lead times that are durations to hours, because table files have no durations."""
    import narwhals as nw

    frame = nw.from_native(predictions, eager_only=True)
    if frame["lead"].dtype == nw.Duration:
        frame = frame.with_columns(nw.col("lead").dt.total_microseconds() / MICROSECONDS)
    return frame.to_native()
