"""Draw all pictures of docs/gallery.md from a folder of runs: python examples/gallery.py runs docs/pictures

`cru reproduce` makes the full runs.
"""

import sys
from pathlib import Path

from cru.reporting.figures import save
from cru.reporting.reproduction import Group
from cru.reporting.run_figures import RUNS, FigureInput, draw
from cru.reporting.run_folder import RunFolder, find_folders


def main(runs: Path, out: Path, *, runtime: bool = True) -> None:
    """Draw the figures that the runs allow, and name the missing runs."""
    folders = find_folders([runs])
    if runtime:
        print(save(draw("runtime", FigureInput([])), out / "runtime.png"))
    for name, group in RUNS.items():
        chosen = choose(folders, group)
        if chosen:
            print(save(draw(name, FigureInput(chosen)), out / f"{name}.png"))
        else:
            print(f"{name}: there is no run of {', '.join(group.presets)} in {runs}")


def choose(folders: list[RunFolder], group: Group) -> list[RunFolder]:
    """Runs of a group with a checkpoint, in the order of its models."""
    ready = [folder for folder in folders if (folder.path / "best.safetensors").is_file()]
    ready = [folder for folder in ready if folder.settings.preset in group.presets]
    return [folder for model in group.models for folder in ready if folder.model == model]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), runtime="--no-runtime" not in sys.argv)
