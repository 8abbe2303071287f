"""What the examples of the two tutorials share: their options, how a model is kept, how a picture is written."""

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


def kept(folder: Path, fit: Callable[[], Forecaster]) -> Forecaster:
    """The model of this folder; learnt now, if there is none."""
    if not folder.exists():
        fit().save(folder)
    return Forecaster.load(folder)


def write(figure: Any, path: Path) -> None:
    """A PNG that is not too large for a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    matplotlib.pyplot.close(figure)
