"""``cru fit``: fit a forecaster to a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from cru.cli.console import make_console, print_warnings
from cru.cli.options import find_own_code

if TYPE_CHECKING:
    from rich.console import Console

MAX_SCORE_ROWS = 40  # rows of the table of scores on the console
BETTER_RULE = 0.99  # report a naive rule whose error is below this fraction of the error of the model


def fit(
    table: Annotated[Path, typer.Argument(help="A .csv, .csv.gz or .parquet file with one row per observation.")],
    time: Annotated[str, typer.Option(help="Column of times: numbers, or dates like 2024-01-31T12:00.")],
    out: Annotated[Path, typer.Option(help="Folder of the model. An existing model is replaced.")],
    id_: Annotated[
        str | None, typer.Option("--id", help="Column of series names. Without it, there is one series.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="Columns of values, separated by commas. Default: all other columns.")
    ] = None,
    variable: Annotated[str | None, typer.Option(help="Column of variable names, for a long table.")] = None,
    average: Annotated[bool, typer.Option("--average", help="Average several rows of a series at one time.")] = False,
    model: Annotated[str, typer.Option(help="A model of `cru models`, or module:Class.")] = "mlp",
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Add the model to a structural model, or use it alone.")
    ] = True,
    epochs: Annotated[int | None, typer.Option(help="Largest number of epochs.", min=1)] = None,
    minutes: Annotated[float, typer.Option(help="Limit of processor time. 0 means no limit.", min=0.0)] = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of split, initial weights and withheld values.", min=0)] = 0,
    history: Annotated[bool, typer.Option(help="Store the observations in the folder, for `cru forecast`.")] = True,
) -> None:
    """Fit a model to a table of irregular observations. Write a folder for `forecast`, `impute`, `plot`, `stream`."""
    from cru.forecaster import Forecaster
    from cru.forecaster.calibration import UNMEASURED, guarantee
    from cru.forecaster.serialization import check_free

    find_own_code(model)
    check_free(out)  # before the long computation
    stored = "Stored" if not out.exists() or not any(out.iterdir()) else "Stored in place of the older model"
    over = "structural" if base else None
    forecaster = Forecaster(model, base=over, epochs=epochs, minutes=minutes or None, seed=seed)
    chosen = [name.strip() for name in values.split(",")] if values else None
    columns = {"id": id_, "time": time, "values": chosen, "variable": variable}
    console = make_console()
    try:
        with print_warnings(console):
            forecaster.fit(table, **columns, duplicates="mean" if average else "refuse")  # type: ignore[arg-type]
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing is stored. For a shorter training, use --minutes or --epochs.") from None
    forecaster.save(out, history=history)
    scores, series, names = forecaster.scores_, forecaster._series(None), forecaster.names_
    variables = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    console.print(f"{len(series):,} series, {len(series.times):,} times, variables {variables}.", soft_wrap=True)
    summary = f"R² {scores['r2']:.3f} (last value: {scores['r2_last_value']:.3f})"
    summary += f" on {scores['count']:,} withheld values of {scores['series']:,} series"
    if "coverage90" in scores:
        summary += f", {scores['coverage90']:.1%} of them inside their 90 % interval"
    console.print(f"{summary}. {stored} in {out}.", soft_wrap=True)
    if scores["r2"] <= max(0.0, scores["r2_last_value"]):
        rule = "the mean" if scores["r2_last_value"] < 0 else "the last value"
        console.print(f"No better than {rule}. Train longer, or use more data.", soft_wrap=True)
    _print_scores(console, scores["table"])
    measured = forecaster.calibration_.measured
    console.print(guarantee(scores["series"]) if measured else UNMEASURED, soft_wrap=True)


def _print_scores(console: "Console", rows: list[dict[str, Any]]) -> None:
    """Print the table of scores, and every row in which a naive rule is better."""
    from rich.table import Table

    if not rows:
        return
    models = [name for name in rows[0] if name not in ("variable", "lead", "count")]
    table = Table("variable", "lead time", "values", *models, title="Mean absolute error, in standard deviations")
    for row in rows[:MAX_SCORE_ROWS]:
        best = min(row[name] for name in models)
        cells = [f"[bold]{row[name]:.3f}[/bold]" if row[name] == best else f"{row[name]:.3f}" for name in models]
        table.add_row(escape(str(row["variable"])), row["lead"], f"{row['count']:,}", *cells)
    console.print(table)
    if len(rows) > MAX_SCORE_ROWS:
        console.print(f"{len(rows) - MAX_SCORE_ROWS} more rows are in `scores_['table']`.", soft_wrap=True)
    for row in rows:
        better = [
            name for name in models if name not in ("model", "structural") and row[name] < BETTER_RULE * row["model"]
        ]
        if better:
            best = min(better, key=lambda name: row[name])
            summary = (
                f"{row['variable']}, {row['lead']}: {best} is better ({row[best]:.3f} against {row['model']:.3f})."
            )
            console.print(summary, soft_wrap=True, markup=False)
