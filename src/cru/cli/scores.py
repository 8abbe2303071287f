"""Tables of scores on the console."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 40  # rows of a table on the console
_KEYS = ("variable", "lead", "series", "count")
_TITLES = {"lead": "lead time", "count": "values", "mae": "MAE", "rmse": "RMSE", "crps": "CRPS"}


def print_errors(console: "Console", rows: Sequence[Mapping[str, Any]], title: str, style: str) -> None:
    """Print the mean absolute error of every model, one row for each group. The best one is bold.

    Args:
        console: the console to print to.
        rows: the keys of a group, "count", and the error of each model.
        title: the title of the table.
        style: the format of a number.
    """
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    keys = [key for key in _KEYS if key in rows[0]]
    models = [name for name in rows[0] if name not in keys]
    table = Table(*(_TITLES.get(key, key) for key in keys), *models, title=title)
    for row in rows[:MAX_ROWS]:
        best = min(row[name] for name in models)
        cells = [Text(format(row[name], style), "bold" if row[name] == best else "") for name in models]
        table.add_row(*(f"{row[key]:,}" if key == "count" else str(row[key]) for key in keys), *cells)
    console.print(table)
    if len(rows) > MAX_ROWS:
        console.print(f"{len(rows) - MAX_ROWS} more rows are not shown.", soft_wrap=True)


def print_better_naive_models(
    console: "Console", rows: Sequence[Mapping[str, Any]], details: Sequence[Mapping[str, Any]]
) -> None:
    """Print every group in which a naive model is better by more than noise.

    Args:
        console: the console to print to.
        rows: `scores_["table"]`.
        details: `scores_["details"]`.
    """
    errors = {(row["variable"], row["lead"]): row for row in rows}
    best = {(row["variable"], row["lead"]): row["model"] for row in details if row["better"] == "reference"}
    for row in details:
        key = row["variable"], row["lead"]
        if row["model"] == "model" and row["better"] == "no":
            numbers = f"{errors[key][best[key]]:.3f} against {errors[key]['model']:.3f}"
            console.print(f"{key[0]}, {key[1]}: {best[key]} is better ({numbers}).", soft_wrap=True, markup=False)


def print_scores(console: "Console", table: Mapping[str, Sequence[Any]], title: str) -> None:
    """Print the table of `Comparison.table`, one row for each group and model.

    Args:
        console: the console to print to.
        table: columns by name.
        title: the title of the table.
    """
    from rich.table import Table

    names = [name for name in table if name not in ("low", "high")]
    shown = Table(*(_TITLES.get(name, name) for name in names), title=title)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    for row in rows[:MAX_ROWS]:
        shown.add_row(*(_cell(name, row) for name in names))
    console.print(shown)
    if len(rows) > MAX_ROWS:
        console.print(f"{len(rows) - MAX_ROWS} more rows are not shown.", soft_wrap=True)


def wide_rows(table: Mapping[str, Sequence[Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Arrange the mean absolute errors of `Comparison.table` with one row for each group."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, model in enumerate(table["model"]):
        key = tuple(table[name][number] for name in keys)
        start = {**dict(zip(keys, key, strict=True)), "count": table["count"][number]}
        found.setdefault(key, start)[model] = table["mae"][number]
    return list(found.values())


def _cell(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if name == "difference":
        return f"{value:+.3g} [{row['low']:.3g}, {row['high']:.3g}]"
    if name.startswith("coverage"):
        return f"{value:.1%}"
    return f"{value:,}" if name == "count" else f"{value:.4g}" if isinstance(value, float) else str(value)
