"""Options that several commands share."""

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cru.forecaster import Forecaster
    from cru.forecaster.clock import Clock

DEFAULT_LEDGER = Path("results/ledger.jsonl")
Ledger = Annotated[Path, typer.Option(help="File with one line for every finished run.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the raw files. Default: CRU_DATA_DIR, or a download from the source."),
]
FigureFile = Annotated[Path | None, typer.Option(help="Output file: .png, .svg or .pdf. Default: NAME.png.")]

TrainingTable = Annotated[Path, typer.Argument(help="A .csv, .csv.gz or .parquet file with one row per observation.")]
TimeColumn = Annotated[str, typer.Option("--time", help="Column of times: numbers, or dates like 2024-01-31T12:00.")]
IdColumn = Annotated[str | None, typer.Option("--id", help="Column of series names. Without it, there is one series.")]
ValueColumns = Annotated[
    str | None,
    typer.Option("--values", help="Columns of values, separated by commas. Default: all other columns."),
]
VariableColumn = Annotated[
    str | None,
    typer.Option("--variable", help="Column of variable names, for a long table (one row per value)."),
]
Epochs = Annotated[int | None, typer.Option(help="Largest number of epochs.", min=1)]
Minutes = Annotated[
    float, typer.Option(help="Limit of each training, in minutes of processor time. 0 means no limit.", min=0.0)
]
Seed = Annotated[int, typer.Option(help="Seed of the split, initial weights and withheld values.", min=0)]


class DuplicatesChoice(StrEnum):
    """The handling of rows of a series that have the same time."""

    refuse = "refuse"
    mean = "mean"


Duplicates = Annotated[
    DuplicatesChoice, typer.Option(help="Rows of a series with the same time: refuse them, or take their mean.")
]


class LateChoice(StrEnum):
    """The handling of an observation before the last one of its series."""

    refuse = "refuse"
    drop = "drop"


Late = Annotated[
    LateChoice,
    typer.Option(
        help="Observations that arrive after a later one of their series: respond with an error, or drop them."
    ),
]
ModelFolder = Annotated[Path, typer.Argument(help="A folder that `cru fit` wrote.")]
Observations = Annotated[
    Path | None, typer.Argument(help="Table with the columns of the training table. Default: the training table.")
]
TableFile = Annotated[Path, typer.Option(help="Output file: .csv or .parquet.")]
Horizon = Annotated[
    str, typer.Option(help='Longest lead time of the predictions: "30D", "6h", or a number if times are numbers.')
]
Level = Annotated[
    list[float] | None,
    typer.Option(help="Level of an interval in per cent. Repeat the option for several. Default: 50 and 90."),
]
Cuts = Annotated[str, typer.Option(help="Number of cuts of each series, or times of cuts separated by commas.")]
Between = Annotated[str | None, typer.Option(help="Time between two cuts. Default: the horizon or less.")]
By = Annotated[
    str, typer.Option(help="Groups of the scores: any of variable, lead (time), series, separated by commas.")
]
Jobs = Annotated[int, typer.Option("--jobs", help="Number of processes.", min=1)]
Known = Annotated[
    str | None,
    typer.Option(
        help="Columns of numbers known at every time, such as plan,price=last,dose=0. The fill after = replaces "
        "missing values: the last value, or a number for times without an event."
    ),
]
Static = Annotated[
    str | None, typer.Option(help="Columns with one number or category for each series, separated by commas.")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import the model class that the folder names. This runs its code.")
]


def find_own_code(model: str = "", *, allow_code: bool = False) -> None:
    """Add the current folder to the import path, for a model of the user or for code that the user allows."""
    if allow_code or ":" in model:
        sys.path.append(str(Path.cwd()))


def load_forecaster(folder: Path, *, allow_code: bool) -> "Forecaster":
    """Load a forecaster, with a model of the current folder if the user allows its code."""
    from cru.forecaster import Forecaster

    find_own_code(allow_code=allow_code)
    return Forecaster.load(folder, allow_code=allow_code)


def as_time(text: str | None, clock: "Clock") -> float | str | None:
    """Convert a time or a duration to a number if times are numbers. The clock checks the result."""
    if text is None or clock.kind != "number":
        return text
    try:
        return float(text)
    except ValueError:
        return text


def as_cuts(text: str, clock: "Clock") -> Any:
    """Convert the option --cuts: a number of cuts, or times that are separated by commas."""
    if re.fullmatch(r"-?\d+", text.strip()):
        return int(text)
    return [as_time(part.strip(), clock) for part in text.split(",") if part.strip()]


def as_names(text: str | None) -> list[str] | None:
    """Convert names that are separated by commas to a list."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


def as_known(text: str | None) -> dict[str, float | str | None] | None:
    """Convert the option --known to a mapping from names to fills. The forecaster checks the fills.

    >>> from cru.cli.options import as_known
    >>> as_known("plan,price=last,dose=0")
    {'plan': None, 'price': 'last', 'dose': 0.0}
    """
    from cru.data.table_files import parse_number

    found: dict[str, float | str | None] = {}
    for part in as_names(text) or []:
        name, equals, fill = part.partition("=")
        number = parse_number(fill)
        found[name.strip()] = None if not equals else fill.strip() if number is None else number
    return found or None
