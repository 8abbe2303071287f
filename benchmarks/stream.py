"""Speed and memory of streams: one observation at a time, one thread, processor time.

    python benchmarks/stream.py [--quick]

A model with a state of 20 for 5 variables, 20 000 series that take turns: the milliseconds of an update and of a
prediction (10th percentile, median, 99th percentile), the microseconds of a row of a table given at once, and
the bytes that a series takes. The table also has the median for a stream with one
series. Both medians should be equal. On a busy machine, the 10th percentile is nearer to the time of an idle one.
"""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import report

from cru import Forecaster

MODELS = ("cru", "f-cru", "rkn-dt", "gru-dt", "ode-rnn", "gru-ode-b")
NAMES = ["a", "b", "c", "d", "e"]
LIMIT = 1.0  # ms of an update, for the CRU


def table(series: int, steps: int) -> pd.DataFrame:
    """Random observations, a third of the values missing."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 30, (series, steps))).ravel()
    frame = pd.DataFrame({"id": np.repeat(np.arange(series), steps), "time": times})
    for name in NAMES:
        frame[name] = np.where(rng.random(len(times)) < 2 / 3, rng.standard_normal(len(times)), np.nan)
    return frame


def milliseconds(work: Callable[[int], Any], count: int) -> np.ndarray:
    """Measure the time of each call, after 50 calls that are not measured."""
    spent = np.empty(count)
    for number in range(-50, count):
        start = time.process_time_ns()
        work(number)
        spent[max(number, 0)] = 1e-6 * (time.process_time_ns() - start)
    return spent


def measure(name: str, series: int, count: int) -> tuple[list[Any], float]:
    """One row of the table, and the median of an update."""
    forecaster = Forecaster(name, base=None, options={"hidden_size": 20}, epochs=1, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forecaster.fit(table(40, 20), id="id", time="time")
    stream, past = forecaster.stream(), table(series, 4)
    start = time.process_time()
    rows = stream.update_many(past)
    at_once = 1e6 * (time.process_time() - start) / rows
    observation = dict(zip(NAMES, (0.3, None, -1.2, 0.5, None), strict=True))
    alone = forecaster.stream()
    single = milliseconds(lambda number: alone.update("x", 31.0 + number / 100 + 1, observation), count)
    updates = milliseconds(lambda number: stream.update(number % series, 31.0 + number / 100 + 1, observation), count)
    predictions = milliseconds(lambda number: stream.predict(number % series, 500.0 + number), count)
    kept = sum(tensor[:1].numel() * tensor.element_size() for tensor in stream.states.tensors)
    shares = (0.1, 0.5, 0.99)
    cells = [" / ".join(f"{figure:.2f}" for figure in np.quantile(spent, shares)) for spent in (updates, predictions)]
    return [name, *cells, float(np.median(single)), at_once, kept], float(np.median(updates))


def main() -> None:
    """Print the table; say if the CRU misses its limit."""
    torch.set_num_threads(1)
    quick = "--quick" in sys.argv
    series, count = (2_000, 300) if quick else (20_000, 2_000)
    rows, medians = zip(*(measure(name, series, count) for name in (MODELS[:1] if quick else MODELS)), strict=True)
    columns = ["model", "update (ms): 10 % / 50 % / 99 %", "prediction (ms)", "update, one series (ms)"]
    columns += ["row of a table (µs)", "bytes a series"]
    report("stream", f"Streams of {series:,} series, M = 20: one thread, CPU time", columns, list(rows))
    if medians[0] > LIMIT:
        print(f"MISSED: an update of the CRU took {medians[0]:.2f} ms, more than {LIMIT}")


if __name__ == "__main__":
    main()
