"""``cru forecast``: what comes after the last reading of each series."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cru.cli.console import make_console, noting
from cru.cli.own_code import AllowCode, find_own_code

if TYPE_CHECKING:
    from cru.forecaster import Forecaster

Model = Annotated[Path, typer.Argument(help="A folder that `cru fit` wrote.")]
Out = Annotated[Path, typer.Option(help="The .csv or .parquet file for the answers.")]
Level = Annotated[list[float] | None, typer.Option(help="An interval in per cent; may be repeated [50 and 90].")]


def forecast(
    model: Model,
    horizon: Annotated[str, typer.Option(help='How far: "30D", "6h"; a number where times are numbers.')],
    out: Out,
    table: Annotated[Path | None, typer.Argument(help="Readings to start from; those of training without it.")] = None,
    every: Annotated[str | None, typer.Option(help="The step; about the typical gap without it.")] = None,
    level: Level = None,
    allow_code: AllowCode = False,
) -> None:
    """Forecast every series and write a long table: id, time, variable, mean, std and intervals."""
    from cru.forecaster import Forecaster
    from cru.forecaster.frames import check_ending, write_frame

    check_ending(out)
    find_own_code(allow_code=allow_code)
    forecaster = Forecaster.load(model, allow_code=allow_code)
    steps = {"horizon": as_length(horizon, forecaster), "every": as_length(every, forecaster)}
    console = make_console()
    with noting(console):
        answers = forecaster.forecast(table, **steps, level=level or [50, 90])
        write_frame(answers, out)
    console.print(f"{len(answers):,} rows in {out}.", soft_wrap=True)


def as_length(text: str | None, forecaster: "Forecaster") -> float | str | None:
    """A length of time: a number where times are numbers; the forecaster says what is wrong with anything else."""
    if text is None or forecaster.clock_.kind != "number":
        return text
    try:
        return float(text)
    except ValueError:
        return text
