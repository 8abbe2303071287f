"""Options that several commands share."""

import re
import sys
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
ModelFolder = Annotated[Path, typer.Argument(help="A folder that `cru fit` wrote.")]
TableFile = Annotated[Path, typer.Option(help="Output file: .csv or .parquet.")]
Level = Annotated[
    list[float] | None, typer.Option(help="Level of an interval in per cent; may be repeated [50 and 90].")
]
Cuts = Annotated[str, typer.Option(help="Number of cuts of each series, or times of cuts separated by commas.")]
Between = Annotated[str | None, typer.Option(help="Time between two cuts. Default: the horizon or less.")]
By = Annotated[str, typer.Option(help="Groups of the scores: any of variable, lead, series, separated by commas.")]
Jobs = Annotated[int, typer.Option("--jobs", help="Number of processes.", min=1)]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import the module:Class that the folder names. This runs its code.")
]


def find_own_code(model: str = "", *, allow_code: bool = False) -> None:
    """Add the current folder to the import path, for a model of the user or for code that the user allows."""
    if allow_code or ":" in model:
        sys.path.append(str(Path.cwd()))


def as_length(text: str | None, forecaster: "Forecaster") -> float | str | None:
    """Convert a duration to a number if times are numbers. The forecaster rejects anything else."""
    return as_time(text, forecaster.clock_)


def as_time(text: str | None, clock: "Clock") -> float | str | None:
    """Convert a time or a duration to a number if times are numbers. The clock rejects anything else."""
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
