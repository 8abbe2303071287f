"""All pictures of docs/gallery.md again, from a folder of runs: python examples/gallery.py runs docs/pictures"""

import sys
from pathlib import Path

from cru.evaluation.figures import save
from cru.training.folder import RunFolder, find_folders
from cru.training.pictures import Material, draw

# Which picture is drawn from which experiment, and of which models: the first that is there, or all of them.
FIRST, ALL = "first", "all"
KALMAN = ("cru", "f-cru", "rkn-dt", "rkn")
PICTURES = [
    ("gain-noise", "pendulum-regression", KALMAN, FIRST),
    ("trajectory", "pendulum-interpolation", ("paired-smoother", "cru", "f-cru", "gru-dt"), FIRST),
    ("gain-sparseness", "ushcn-sparseness", KALMAN, FIRST),
    ("curves", "pendulum-regression", (), ALL),
    ("calibration", "pendulum-regression", (), ALL),
    ("gaps", "pendulum-interpolation", (), ALL),
    ("series", "ushcn-extrapolation", ("paired", "cru", "f-cru", "climatology"), FIRST),
]


def main(runs: Path, out: Path, *, runtime: bool = True) -> None:
    """Draw what the runs are there for, and say what is missing."""
    folders = find_folders([runs])
    if runtime:
        print(save(draw("runtime", Material([])), out / "runtime.png"))
    for name, preset, models, how in PICTURES:
        chosen = choose([folder for folder in folders if folder.settings.preset == preset], models)
        if not chosen:
            print(f"{name}: there is no run of {preset} in {runs}")
            continue
        print(save(draw(name, Material(chosen[:1] if how == FIRST else chosen)), out / f"{name}.png"))


def choose(folders: list[RunFolder], models: tuple[str, ...]) -> list[RunFolder]:
    """Runs with a checkpoint, of these models and in this order; all where none is named."""
    ready = [folder for folder in folders if (folder.path / "best.safetensors").is_file()]
    if not models:
        return ready
    return [folder for model in models for folder in ready if folder.model == model]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), runtime="--no-runtime" not in sys.argv)
