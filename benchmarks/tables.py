"""How large a table may be: a `Forecaster` on tables of extreme shapes, one thread, processor time, peak memory.

    python benchmarks/tables.py [--quick]

The model is a CRU alone. Its training has one epoch, so that the time of `fit` is mostly that of all other work. Each
line runs in a process of its own. The memory is the process's peak, imports and table included.
"""

import multiprocessing
import sys
import time

import numpy as np
import polars as pl
import torch
from common import report
from memory import gigabytes

from cru import Forecaster

SHAPES = {  # series, observations of each, variables
    "many series": (100_000, 5, 3),
    "one long series": (1, 1_000_000, 3),
    "many variables": (10, 4, 10_000),
    "many of all": (200, 200, 200),
}


def table(series: int, observations: int, variables: int) -> pl.DataFrame:
    """Waves with noise, a tenth of the values missing."""
    rng = np.random.default_rng(0)
    times = np.tile(np.sort(rng.uniform(0, observations, observations)), series)
    columns = {"id": np.repeat(np.arange(series), observations), "time": times}
    for k in range(variables):
        wave = np.sin(times / 5 + k) + 0.1 * rng.normal(size=len(times))
        columns[f"x{k}"] = np.where(rng.random(len(times)) < 0.1, np.nan, wave)
    return pl.DataFrame(columns, nan_to_null=True)


def measure(shape: tuple[int, int, int]) -> list[float]:
    """Seconds of an epoch of `fit`, of a forecast, of filling in and of ten trajectories, and the memory of all."""
    torch.set_num_threads(1)
    frame, seconds = table(*shape), [time.process_time()]
    model = Forecaster("cru", base=None, epochs=1, minutes=None, progress=False).fit(frame, id="id", time="time")
    seconds.append(time.process_time())
    model.forecast(frame, horizon=2.0)
    seconds.append(time.process_time())
    model.impute(frame)
    seconds.append(time.process_time())
    model.sample(10, frame, horizon=2.0)
    seconds.append(time.process_time())
    return [*np.diff(seconds), gigabytes("VmHWM")]


def main() -> None:
    less, rows = 10 if "--quick" in sys.argv else 1, []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, full in SHAPES.items():
            shape = tuple(n // less if n == max(full) else n for n in full)
            rows.append([name, *(f"{n:,}".replace(",", " ") for n in shape), *pool.apply(measure, (shape,))])
    columns = [
        "table",
        "series",
        "observations each",
        "variables",
        "fit, an epoch, s",
        "forecast, s",
        "impute, s",
        "10 draws, s",
        "GB",
    ]
    report("tables", "CRU on tables of extreme shapes", columns, rows)


if __name__ == "__main__":
    main()
