"""``cru figure``: figures of runs, or of the runtime on this machine."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cru.cli.options import DEFAULT_LEDGER, AllowCode, DataDir, FigureFile, Ledger, find_own_code
from cru.cli.printing import make_console
from cru.cli.run import train
from cru.cli.signals import sigterm_as_interrupt

if TYPE_CHECKING:
    from cru.reporting.run_folder import RunFolder


class Name(StrEnum):
    """The figures of `cru.reporting.run_figures`. This copy lets the help import nothing heavy."""

    runtime = "runtime"
    gain_noise = "gain-noise"
    gain_sparseness = "gain-sparseness"
    trajectory = "trajectory"
    curves = "curves"
    calibration = "calibration"
    gaps = "gaps"
    series = "series"


Folders = Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or folders that contain them.")]


def figure(
    name: Annotated[Name, typer.Argument(help="Name of the figure.")],
    runs: Folders = None,
    out: FigureFile = None,
    series: Annotated[
        str | None, typer.Option(help="The id of a test series. Default: one with varying noise.")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of test series.", min=1)] = 200,
    reproduce: Annotated[
        bool, typer.Option("--reproduce", help="Use unshortened runs in RUNS or in runs/, and train the missing ones.")
    ] = False,
    data_dir: DataDir = None,
    ledger: Ledger = DEFAULT_LEDGER,
    allow_code: AllowCode = False,
) -> None:
    """Draw a figure from runs. The figure `runtime` needs no runs: it measures this machine."""
    from cru.reporting.figures import check_path, save
    from cru.reporting.run_figures import FigureInput, draw
    from cru.reporting.run_folder import find_folders

    path = check_path(out or Path(f"{name.value}.png"))  # before the long computation
    find_own_code(allow_code=allow_code)
    places = runs or ([Path("runs")] if reproduce else [])
    folders = _full_runs(name.value, places, ledger, data_dir) if reproduce else find_folders(places)
    inputs = FigureInput(folders, series=series, most=count, data_dir=data_dir, allow_code=allow_code)
    save(draw(name.value, inputs), path)
    make_console().print(f"Picture: {path}", soft_wrap=True)


def _full_runs(name: str, places: list[Path], ledger: Path, data_dir: Path | None) -> "list[RunFolder]":
    """Return the full runs of a figure. Train the missing ones first."""
    from cru.reporting.reproduction import find_runs
    from cru.reporting.run_figures import RUNS

    if name not in RUNS:
        return []
    _, missing = find_runs(RUNS[name], places, ledger_path=ledger)
    if missing:
        hours = sum(cell.seconds for cell in missing) / 3600
        make_console().print(f"{len(missing)} runs are missing, about {hours:.1f} hours on one core.", soft_wrap=True)
    try:
        with sigterm_as_interrupt():
            for cell in missing:
                train(cell.settings, cell.folder, data_dir=data_dir, resume=True, ledger_path=ledger)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues after the last complete epoch.") from None
    return find_runs(RUNS[name], places, ledger_path=ledger)[0]
