"""Functions that the two tutorial examples share: read options, load or fit a model, write a picture."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

from cru import Forecaster

matplotlib.use("Agg")


def read_options(about: str | None, **options: float) -> argparse.Namespace:
    """Read the command line: --out and --small, and ``options`` with their defaults."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


def load_or_fit(folder: Path, fit: Callable[[], Forecaster]) -> Forecaster:
    """Load the model of a folder. Fit and save it first if the folder does not exist."""
    if not folder.exists():
        fit().save(folder)
    return Forecaster.load(folder)


def write(figure: Any, path: Path) -> None:
    """Write a figure as a PNG of 110 dpi."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    matplotlib.pyplot.close(figure)
