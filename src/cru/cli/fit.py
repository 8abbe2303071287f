"""``cru fit``: a forecaster for one's own table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from cru.cli.console import make_console, noting
from cru.cli.options import find_own_code

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 40  # of the table of scores on the screen


def fit(
    table: Annotated[Path, typer.Argument(help="A .csv, .csv.gz or .parquet file with one row for each reading.")],
    time: Annotated[str, typer.Option(help="The column of times: numbers, or dates like 2024-01-31T12:00.")],
    out: Annotated[Path, typer.Option(help="The folder of the model; a model that is there is replaced.")],
    id_: Annotated[
        str | None, typer.Option("--id", help="The column of series' names; without it, one series.")
    ] = None,
    values: Annotated[str | None, typer.Option(help="Columns of readings, with commas; all others by default.")] = None,
    variable: Annotated[str | None, typer.Option(help="In a long table, the column that says what was read.")] = None,
    average: Annotated[bool, typer.Option("--average", help="Average several rows of a series at one time.")] = False,
    model: Annotated[str, typer.Option(help="A model of `cru models`, or module:Class.")] = "mlp",
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Put the model on top of a structural one, or take it alone.")
    ] = True,
    epochs: Annotated[int | None, typer.Option(help="At most so many.", min=1)] = None,
    minutes: Annotated[float, typer.Option(help="Stop after so much processor time; 0 for no limit.", min=0.0)] = 4.0,
    seed: Annotated[int, typer.Option(help="Fixes split, initial weights and what is withheld.", min=0)] = 0,
    history: Annotated[bool, typer.Option(help="Keep the readings in the folder, for `cru forecast`.")] = True,
) -> None:
    """Learn from a table of irregular readings; write a model folder for `forecast`, `impute`, `plot` and `stream`."""
    from cru.forecaster import Forecaster
    from cru.forecaster.calibration import UNMEASURED, guarantee
    from cru.forecaster.serialization import check_free

    find_own_code(model)
    check_free(out)  # before the long part
    kept = "Kept" if not out.exists() or not any(out.iterdir()) else "Kept in place of the older model"
    over = "structural" if base else None
    forecaster = Forecaster(model, base=over, epochs=epochs, minutes=minutes or None, seed=seed)
    chosen = [name.strip() for name in values.split(",")] if values else None
    columns = {"id": id_, "time": time, "values": chosen, "variable": variable}
    console = make_console()
    try:
        with noting(console):
            forecaster.fit(table, **columns, duplicates="mean" if average else "refuse")  # type: ignore[arg-type]
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "nothing is kept. For a training that ends earlier give --minutes or --epochs."
        ) from None
    forecaster.save(out, history=history)
    scores, series, names = forecaster.scores_, forecaster._series(None), forecaster.names_
    variables = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    console.print(f"{len(series):,} series, {len(series.times):,} times, variables {variables}.", soft_wrap=True)
    said = f"R² {scores['r2']:.3f} (the last value seen: {scores['r2_last_value']:.3f})"
    said += f" on {scores['count']:,} withheld values of {scores['series']:,} series"
    if "coverage90" in scores:
        said += f", {scores['coverage90']:.1%} of them inside their 90 % interval"
    console.print(f"{said}. {kept} in {out}.", soft_wrap=True)
    if scores["r2"] <= max(0.0, scores["r2_last_value"]):
        rule = "to say the mean" if scores["r2_last_value"] < 0 else "to repeat the last value seen"
        console.print(f"No better than {rule}: train longer, or give it more.", soft_wrap=True)
    _print_scores(console, scores["table"])
    measured = forecaster.calibration_.measured
    console.print(guarantee(scores["series"]) if measured else UNMEASURED, soft_wrap=True)


def _print_scores(console: "Console", rows: list[dict[str, Any]]) -> None:
    """Show the table of scores, and name every place where a naive rule is better."""
    from rich.table import Table

    if not rows:
        return
    models = [name for name in rows[0] if name not in ("variable", "lead", "count")]
    table = Table("variable", "lead time", "values", *models, title="Mean absolute error, in standard deviations")
    for row in rows[:MOST_ROWS]:
        best = min(row[name] for name in models)
        cells = [f"[bold]{row[name]:.3f}[/bold]" if row[name] == best else f"{row[name]:.3f}" for name in models]
        table.add_row(escape(str(row["variable"])), row["lead"], f"{row['count']:,}", *cells)
    console.print(table)
    if len(rows) > MOST_ROWS:
        console.print(f"{len(rows) - MOST_ROWS} more rows are in `scores_['table']`.", soft_wrap=True)
    for row in rows:
        better = [name for name in models if name not in ("model", "structural") and row[name] < 0.99 * row["model"]]
        if better:
            best = min(better, key=lambda name: row[name])
            said = f"{row['variable']}, {row['lead']}: {best} is better ({row[best]:.3f} against {row['model']:.3f})."
            console.print(said, soft_wrap=True, markup=False)
