"""Short lead times, long contexts, many cells and a stream: the forecaster on one long table of many variables.

    CRU_BENCH_DIR=folder python benchmarks/robustness.py [--table air] [--seed 0]

The folder is that of `peers.py`. Errors are in standard deviations of the training table. Seconds are processor time.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from peers import score

import cru

SHORT = 100  # rows of a short context
CELLS = 3_400_000  # predicted in one call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", default="air")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    folder = Path(os.environ["CRU_BENCH_DIR"]) / "tables" / asked.table
    train, context, cells = (
        pd.read_parquet(folder / f"{name}.parquet") for name in ("train", "forecast-context", "forecast-cells")
    )
    deviation = train.drop(columns=["sid", "time"]).std()
    forecaster = cru.Forecaster(seed=asked.seed, progress=False).fit(train, id="sid", time="time")
    at = cells[["sid", "time"]].drop_duplicates()
    short = context.groupby("sid").tail(SHORT)
    for name, table in (("all observations", context), (f"the last {SHORT} rows", short)):
        said = forecaster.predict(table, at=at, level=[50, 90])
        print(f"RMSE with {name}: {score(cells, said, deviation)['rmse']:.3f}")
    said = forecaster.predict(context, at=at)
    last = context.groupby("sid")["time"].max()
    first = cells[cells["time"] - cells["sid"].map(last) <= pd.Timedelta(hours=1)]
    both = first.merge(said, on=["sid", "time", "variable"])
    error = (both["mean"] - both["value"]).abs() / both["variable"].map(deviation)
    print(f"MAE one hour ahead: {error.groupby(both['variable']).mean().mean():.3f} of {len(both)} values")
    steps = CELLS // (len(last) * len(deviation))
    times = last.max() + pd.to_timedelta(np.arange(1, steps + 1), unit="h")
    started = time.process_time()
    count = len(forecaster.predict(context, at=times))
    print(f"{count:,} cells in {time.process_time() - started:.1f} s")
    stream = forecaster.stream()
    row = context[context["sid"] == context["sid"].iloc[0]].to_dict("records")
    started = time.process_time()
    for one in row[:500]:
        stream.update(one["sid"], one["time"], {name: one[name] for name in deviation.index})
    print(f"a stream update: {2 * (time.process_time() - started):.2f} ms")


if __name__ == "__main__":
    main()
