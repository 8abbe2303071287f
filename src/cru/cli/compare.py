"""``cru compare``: scores of several models, fitted to the past of a table, on the rest of the table."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import (
    Between,
    By,
    Cuts,
    Duplicates,
    DuplicatesChoice,
    Epochs,
    Horizon,
    IdColumn,
    Jobs,
    Known,
    Minutes,
    Seed,
    Static,
    TimeColumn,
    TrainingTable,
    ValueColumns,
    VariableColumn,
    as_cuts,
    as_known,
    as_names,
    as_time,
    find_own_code,
)
from cru.cli.printing import make_console, print_warnings
from cru.cli.scores import print_scores

AUTO = "auto"  # name of the default model


def compare(
    table: TrainingTable,
    time: TimeColumn,
    horizon: Horizon,
    models: Annotated[
        str, typer.Option(help="Models of `cru models`, separated by commas. auto is the default of `cru fit`.")
    ] = AUTO,
    id_: IdColumn = None,
    values: ValueColumns = None,
    variable: VariableColumn = None,
    known: Known = None,
    static: Static = None,
    duplicates: Duplicates = DuplicatesChoice.refuse,
    every: Between = None,
    cuts: Cuts = "1",
    by: By = "",
    epochs: Epochs = None,
    minutes: Minutes = 4.0,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Output file for the scores: .csv or .parquet.")] = None,
    n_jobs: Jobs = 1,
) -> None:
    """Fit each model to the observations before a cut, and score its forecasts and those of naive models."""
    from cru.data.table_files import write_file
    from cru.errors import InputError
    from cru.forecaster import Forecaster
    from cru.forecaster.backtest import compare_models
    from cru.forecaster.comparison import check_keys
    from cru.forecaster.table_io import Columns, check_ending, check_known, check_static, read_training_table
    from cru.models.registry import entry

    if out is not None:
        check_ending(out)
    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError("models", "be different names, separated by commas", repr(models))
    keys = check_keys([key.strip() for key in by.split(",") if key.strip()])
    settings = {"epochs": epochs, "minutes": minutes or None, "seed": seed}
    forecasters = {}
    for name in names:  # every name is checked before the long computation
        find_own_code(name)
        forecasters[name] = Forecaster(**settings) if name == AUTO else Forecaster(name, **settings)  # type: ignore[arg-type]
        entry(forecasters[name].model)
    chosen = as_names(values)
    asked = Columns(
        id=id_,
        time=time,
        values=None if chosen is None else tuple(chosen),
        variable=variable,
        duplicates=duplicates.value,
        known=check_known(as_known(known)),
        static=check_static(as_names(static)),
    )
    console = make_console()
    with print_warnings(console):
        series, clock, columns = read_training_table(table, asked)
        found = compare_models(
            series,
            clock,
            columns,
            forecasters,
            horizon=as_time(horizon, clock),
            every=as_time(every, clock),
            cuts=as_cuts(cuts, clock),
            n_jobs=n_jobs,
        )
        scores = found.scores(keys)
        if out is not None:
            write_file(scores, out)
    together = "variable" in keys or len(series.names) == 1
    title = "Forecasts after a cut, in " + ("the units of the variables" if together else "standard deviations")
    print_scores(console, found.comparison.table(keys), title)
    if out is not None:
        console.print(f"{len(scores):,} rows in {out}.", soft_wrap=True)
