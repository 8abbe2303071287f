"""Measure the coverage of the intervals of a `Forecaster` on real held-out series.

    python benchmarks/coverage.py [--minutes 4] [--model mlp] [--only ushcn] [--seed 0]

USHCN: seven days ahead; PhysioNet: six hours ahead. Stations and patients of the paper's test set are held out. Each is
cut at three random times. Observations before the cut are given, and the intervals must cover those within the horizon
after it. Then a tenth of their values is removed and imputed. Needs CRU_DATA_DIR.

Writes build/bench/coverage.json.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from common import report

import cru
from cru import Forecaster
from cru.data import SeriesSet

DATA_DIR = Path(os.environ["CRU_DATA_DIR"])
HORIZON = {"ushcn": 7.0, "physionet": 6.0}  # days, hours
KEYS = ["series", "time", "variable"]
COLUMNS = ["data", "question", "values", "inside 50 %", "inside 90 %", "least, most of a variable"]


def table(series: SeriesSet) -> pl.DataFrame:
    """A wide table, null where missing."""
    ids = np.array(series.ids)[series.series_index]
    values = np.where(series.mask, series.values, np.nan).astype(np.float64)
    columns = {name: values[:, k] for k, name in enumerate(series.names)}
    return pl.DataFrame({"series": ids, "time": series.times, **columns}, nan_to_null=True)


def long(frame: pl.DataFrame) -> pl.DataFrame:
    """One row for each value that is there."""
    return frame.unpivot(index=["series", "time"], value_name="value").drop_nulls()


def forecast(model: Forecaster, frame: pl.DataFrame, horizon: float, seed: int) -> pl.DataFrame:
    """Answers within the horizon after a random cut of each series, beside what was measured."""
    spans = frame.group_by("series", maintain_order=True).agg(first=pl.col("time").min(), last=pl.col("time").max())
    draw = pl.Series(np.random.default_rng(seed).uniform(0.25, 1.0, len(spans)))
    cut = pl.col("first") + draw * (pl.col("last") - horizon - pl.col("first")).clip(0)
    frame = frame.join(spans.select("series", cut=cut), on="series", maintain_order="left")
    known = frame.filter(pl.col("time") <= pl.col("cut")).drop("cut")
    after = frame.filter((pl.col("time") > pl.col("cut")) & (pl.col("time") <= pl.col("cut") + horizon)).drop("cut")
    said = model.predict(known, at=after.select("series", "time"), level=[50, 90])
    return said.join(long(after), on=KEYS)


def impute(model: Forecaster, frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Answers for a tenth of the values, which were removed."""
    rng = np.random.default_rng(seed)
    names = [name for name in frame.columns if name not in KEYS]
    gone = pl.DataFrame({name: rng.random(len(frame)) < 0.1 for name in names})
    with_holes = frame.with_columns(pl.when(~gone[name]).then(frame[name]).alias(name) for name in names)
    return model.impute(with_holes, level=[50, 90]).join(long(frame), on=KEYS)


def line(data: str, question: str, said: pl.DataFrame) -> list[Any]:
    """Shares inside the intervals, over all values and for each variable that has 200 or more."""
    inside = [pl.col("value").is_between(f"lo-{n}", f"hi-{n}").mean().alias(str(n)) for n in (50, 90)]
    whole = said.select(*inside)
    each = said.group_by("variable").agg(*inside, pl.len()).filter(pl.col("len") >= 200)
    span = f"{each['90'].min():.1%} to {each['90'].max():.1%}"
    shares = [f"{whole['50'][0]:.1%}", f"{whole['90'][0]:.1%}"]
    return [data, question, len(said), *shares, span]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--only", choices=list(HORIZON))
    parser.add_argument("--seed", type=int, default=0, help="of the split and of the cuts")
    options = parser.parse_args()
    rows = []
    for data in [options.only] if options.only else list(HORIZON):
        splits = cru.data.load(data, data_dir=DATA_DIR, scaling=None, seed=options.seed)
        unit = splits.train.time_unit
        seen, test = pl.concat([table(splits.train), table(splits.validation)]), table(splits.test)
        start = time.perf_counter()
        model = Forecaster(options.model, minutes=options.minutes).fit(seen, id="series", time="time")
        scores = {name: round(model.scores_[name], 3) for name in ("r2", "mae", "coverage50", "coverage90")}
        print(f"{data}: fitted in {time.perf_counter() - start:.0f} s, {scores}")
        ahead = pl.concat([forecast(model, test, HORIZON[data], 3 * options.seed + k) for k in range(3)])
        rows.append(line(data, f"forecast, {HORIZON[data]:g} {unit}", ahead))
        rows.append(line(data, "impute", impute(model, test, options.seed)))
    report("coverage", f"Held-out values inside the intervals of a Forecaster({options.model!r})", COLUMNS, rows)


if __name__ == "__main__":
    main()
