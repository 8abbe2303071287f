"""``cru fit``: a forecaster that is fitted to a table."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cru.cli.options import (
    Duplicates,
    DuplicatesChoice,
    Epochs,
    IdColumn,
    Known,
    Minutes,
    Seed,
    Static,
    TimeColumn,
    TrainingTable,
    ValueColumns,
    VariableColumn,
    as_known,
    as_names,
    find_own_code,
)
from cru.cli.printing import make_console, print_warnings
from cru.cli.scores import print_better_naive_models, print_errors
from cru.errors import InputError


def fit(
    table: TrainingTable,
    time: TimeColumn,
    out: Annotated[Path, typer.Option(help="Folder of the model. An existing model is replaced.")],
    id_: IdColumn = None,
    values: ValueColumns = None,
    variable: VariableColumn = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of variables, such as rain=nonnegative,visits=count. Also: number, binary, category. "
            "Default: inferred."
        ),
    ] = None,
    known: Known = None,
    static: Static = None,
    duplicates: Duplicates = DuplicatesChoice.refuse,
    model: Annotated[str, typer.Option(help="A model of `cru models`, or module:Class of your own.")] = "mlp",
    base: Annotated[
        bool,
        typer.Option(
            "--base/--no-base", help="Add the model to a structural model of levels and seasons, or use it alone."
        ),
    ] = True,
    calendar: Annotated[bool, typer.Option(help="Use hour, weekday and season if times are dates.")] = True,
    epochs: Epochs = None,
    minutes: Minutes = 4.0,
    seed: Seed = 0,
    history: Annotated[bool, typer.Option(help="Store the observations in the folder, for `cru forecast`.")] = True,
) -> None:
    """Fit a model to a table of irregular observations. Write a folder for `forecast`, `impute`, `plot`, `stream`.

    Ctrl-C ends the training early. The best epoch so far is stored.
    """
    from cru.forecaster import Forecaster
    from cru.forecaster.calibration import UNMEASURED, guarantee
    from cru.forecaster.serialization import check_free

    find_own_code(model)
    check_free(out)  # before the long computation
    stored = "Stored" if not out.exists() or not any(out.iterdir()) else "Stored in place of the older model"
    over = "structural" if base else None
    forecaster = Forecaster(model, base=over, epochs=epochs, minutes=minutes or None, seed=seed, calendar=calendar)
    columns: dict[str, Any] = {
        "id": id_,
        "time": time,
        "values": as_names(values),
        "variable": variable,
        "kinds": _parse_kinds(kinds),
    }
    columns |= {"known": as_known(known), "static": as_names(static)}
    console = make_console()
    try:
        with print_warnings(console):
            forecaster.fit(table, **columns, duplicates=duplicates.value)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing is stored, because nothing is fitted yet or Ctrl-C came twice.") from None
    forecaster.save(out, history=history)
    scores, series, names = forecaster.scores_, forecaster._series(None), forecaster.names_
    variables = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    console.print(f"{len(series):,} series, {len(series.times):,} times, variables {variables}.", soft_wrap=True)
    console.print(f"Kinds of values: {forecaster.kinds_.describe()}.", soft_wrap=True, markup=False)
    for title, found in (("Known", forecaster.columns_.known), ("Static", forecaster.columns_.static)):
        if found:
            console.print(f"{title}: {', '.join(found)}.", soft_wrap=True, markup=False)
    summary = f"R² {scores['r2']:.3f} (last value: {scores['r2_last_value']:.3f})"
    summary += f" on {scores['count']:,} withheld values of {scores['series']:,} series"
    if "coverage90" in scores:
        summary += f", {scores['coverage90']:.1%} of them inside their 90 % interval"
    console.print(f"{summary}. {stored} in {out}.", soft_wrap=True)
    if scores["r2"] <= max(0.0, scores["r2_last_value"]):
        rule = "the mean" if scores["r2_last_value"] < 0 else "the last value"
        console.print(f"No better than {rule}. Train longer, or use more data.", soft_wrap=True)
    print_errors(console, scores["table"], "Mean absolute error, in standard deviations", ".3f")
    print_better_naive_models(console, scores["table"], scores["details"])
    measured = forecaster.calibration_.measured
    console.print(guarantee(scores["series"]) if measured else UNMEASURED, soft_wrap=True)


def _parse_kinds(text: str | None) -> dict[str, str] | None:
    """Convert a text such as "rain=nonnegative,visits=count" to a mapping from variables to kinds."""
    if not text:
        return None
    parts = [part.rpartition("=") for part in text.split(",")]
    wrong = [kind for name, _, kind in parts if not name.strip()]
    if wrong:
        raise InputError("kinds", "have the form rain=nonnegative,visits=count", repr(wrong[0]))
    return {name.strip(): kind.strip() for name, _, kind in parts}
