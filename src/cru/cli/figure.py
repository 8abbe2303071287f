"""``cru figure``: one picture, of runs or of the machine."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cru.cli.console import make_console
from cru.cli.own_code import AllowCode, find_own_code
from cru.cli.run import DataDir


class Name(StrEnum):
    """The figures of `cru.training.pictures`, named here so that the help stays quick."""

    runtime = "runtime"
    gain_noise = "gain-noise"
    gain_sparseness = "gain-sparseness"
    trajectory = "trajectory"
    curves = "curves"
    calibration = "calibration"
    gaps = "gaps"
    series = "series"


Folders = Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or folders that hold such.")]

Out = Annotated[Path | None, typer.Option(help="Where it goes: .png, .svg or .pdf; NAME.png by default.")]


def figure(
    name: Annotated[Name, typer.Argument(help="Which figure.")],
    runs: Folders = None,
    out: Out = None,
    series: Annotated[str | None, typer.Option(help="The id of a test series; a telling one by default.")] = None,
    count: Annotated[int, typer.Option(help="How many test series are looked at.", min=1)] = 200,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Draw a figure of the paper, or one of ours, from runs; runtime measures this machine instead."""
    from cru.evaluation.figures import check_path, save
    from cru.training.folder import find_folders
    from cru.training.pictures import Material, draw

    path = check_path(out or Path(f"{name.value}.png"))  # before the long part
    find_own_code(allow_code=allow_code)
    material = Material(find_folders(runs or []), series=series, most=count, data_dir=data_dir, allow_code=allow_code)
    save(draw(name.value, material), path)
    make_console().print(f"Picture: {path}", soft_wrap=True)
