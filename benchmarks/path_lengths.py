"""Count the files of this library that a call passes through: fewer files are easier to follow.

    python benchmarks/path_lengths.py [-v]

A file is on a path if one of its functions runs. Every path runs once before it is counted, so that imports and the
compilation of the filters do not count. ``-v`` names the functions.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch

import cru
from cru.data.datasets import pendulum
from cru.training import TrainingSettings, settings_for
from cru.training.loop import Loop

SOURCE = Path(cru.__file__).parent
BARS = {"CSV, fit, forecast": 20, "one training step": 15, "cru.CRU(x, times)": 8}


def files_of(call: Callable[[], Any]) -> dict[str, set[str]]:
    """Return the files that the second of two calls passes through, and their functions."""
    call()
    found: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            found.setdefault(str(path.relative_to(SOURCE)), set()).add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def forecast_path(folder: Path) -> Callable[[], Any]:
    """Fit the default forecaster to a CSV file of 40 series, and forecast."""
    rng = np.random.default_rng(0)
    days = np.sort(rng.uniform(0, 90, (40, 60)))
    table = pd.DataFrame({"station": np.arange(40).repeat(60)})
    table["date"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(days.ravel(), unit="D").round("s")
    for name in ("tmax", "tmin"):
        table[name] = (np.sin(days) + rng.normal(0, 0.2, days.shape)).ravel()
    table.to_csv(folder / "table.csv", index=False)

    def call() -> Any:
        forecaster = cru.Forecaster(epochs=2, progress=False)
        return forecaster.fit(folder / "table.csv", id="station", time="date").forecast(horizon="7D")

    return call


def step_path() -> Callable[[], Any]:
    """Take one step of the optimizer on pendulum regression, with the CRU of the paper."""
    frames = pendulum.generate(pendulum.REGRESSION, 12)
    series = cru.data.regression(frames, target="sin_cos")
    settings = settings_for("pendulum-regression", "cru")
    model = cru.models.create("cru", cru.models.spec_of(series), **settings.model.options)
    loop = Loop(TrainingSettings(epochs=1, batch_size=4), model, series, series)
    return lambda: loop._step(np.arange(4), 0, 0)


def layer_path() -> Callable[[], Any]:
    """Filter a batch of series."""
    layer, x, times = cru.CRU(3, 16), torch.randn(8, 50, 3), torch.rand(8, 50).cumsum(1)
    return lambda: layer(x, times)


def main() -> None:
    """Print the number of files on each path, its bar, and the files."""
    with tempfile.TemporaryDirectory() as folder:
        calls = (forecast_path(Path(folder)), step_path(), layer_path())
        for (name, bar), call in zip(BARS.items(), calls, strict=True):
            found = files_of(call)
            print(f"{name}: {len(found)} files, {sum(map(len, found.values()))} functions (bar: {bar} files)")
            for path, functions in sorted(found.items()):
                print(f"    {path}: {', '.join(sorted(functions)) if '-v' in sys.argv else len(functions)}")


if __name__ == "__main__":
    main()
