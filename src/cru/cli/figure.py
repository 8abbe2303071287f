"""``cru figure``: one picture, of runs or of the machine."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cru.cli.console import make_console
from cru.cli.options import DEFAULT_LEDGER, AllowCode, DataDir, FigureFile, Ledger, find_own_code
from cru.cli.run import train
from cru.cli.signals import terminated_like_interrupted

if TYPE_CHECKING:
    from cru.reporting.run_folder import RunFolder


class Name(StrEnum):
    """The figures of `cru.reporting.run_figures`, named here so that the help stays quick."""

    runtime = "runtime"
    gain_noise = "gain-noise"
    gain_sparseness = "gain-sparseness"
    trajectory = "trajectory"
    curves = "curves"
    calibration = "calibration"
    gaps = "gaps"
    series = "series"


Folders = Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or folders that hold such.")]


def figure(
    name: Annotated[Name, typer.Argument(help="Which figure.")],
    runs: Folders = None,
    out: FigureFile = None,
    series: Annotated[str | None, typer.Option(help="The id of a test series; a telling one by default.")] = None,
    count: Annotated[int, typer.Option(help="How many test series are looked at.", min=1)] = 200,
    reproduce: Annotated[
        bool, typer.Option("--reproduce", help="From full runs, in RUNS or else in runs/: train what is missing there.")
    ] = False,
    data_dir: DataDir = None,
    ledger: Ledger = DEFAULT_LEDGER,
    allow_code: AllowCode = False,
) -> None:
    """Draw a figure of the paper, or one of ours, from runs; runtime measures this machine instead."""
    from cru.reporting.figures import check_path, save
    from cru.reporting.run_figures import FigureInput, draw
    from cru.reporting.run_folder import find_folders

    path = check_path(out or Path(f"{name.value}.png"))  # before the long part
    find_own_code(allow_code=allow_code)
    places = runs or ([Path("runs")] if reproduce else [])
    folders = _full_runs(name.value, places, ledger, data_dir) if reproduce else find_folders(places)
    material = FigureInput(folders, series=series, most=count, data_dir=data_dir, allow_code=allow_code)
    save(draw(name.value, material), path)
    make_console().print(f"Picture: {path}", soft_wrap=True)


def _full_runs(name: str, places: list[Path], ledger: Path, data_dir: Path | None) -> "list[RunFolder]":
    """The runs that a figure is made from: those that are there, and the others after a training."""
    from cru.reporting.reproduction import find_runs
    from cru.reporting.run_figures import RUNS

    if name not in RUNS:
        return []
    _, missing = find_runs(RUNS[name], places, ledger_path=ledger)
    if missing:
        hours = sum(cell.seconds for cell in missing) / 3600
        make_console().print(f"{len(missing)} runs are missing, about {hours:.1f} hours on one core.", soft_wrap=True)
    try:
        with terminated_like_interrupted():
            for cell in missing:
                train(cell.settings, cell.folder, data_dir=data_dir, resume=True, ledger_path=ledger)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on after the last whole epoch.") from None
    return find_runs(RUNS[name], places, ledger_path=ledger)[0]
