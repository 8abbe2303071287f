"""Compare the forecaster with LightGBM and a Gaussian process on real tables with held-out cells.

    CRU_BENCH_DIR=folder python benchmarks/peers.py [--tables air,diabetes] [--seeds 3] [--out folder]

`CRU_BENCH_DIR` holds ``tables/NAME/{train,forecast-context,forecast-cells,impute-context,impute-cells}.parquet`` and
``scores.csv`` with the scores of other tools. Scores are means over variables with at least 30 cells, in standard
deviations of the training table.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

import cru

QUANTILES = {"lo-90": 0.05, "lo-50": 0.25, "hi-50": 0.75, "hi-90": 0.95}
TASKS = ("forecast", "impute")
COLUMNS = ["rmse", "mae", "pinball", "inside90", "width90"]


def score(cells: pd.DataFrame, said: pd.DataFrame, deviation: pd.Series) -> dict[str, float]:
    """The scores of one task; every cell must have a prediction."""
    keys = ["sid", "time", "variable"]
    both = cells.drop_duplicates(keys).merge(said.drop_duplicates(keys), on=keys, how="left")
    both = both[both.groupby("variable")["value"].transform("size") >= 30]
    assert both["mean"].notna().all(), "cells without a prediction"
    unit, group = both["variable"].map(deviation), both["variable"]
    error = (both["mean"] - both["value"]) / unit
    pinball = 0.0
    for name, q in QUANTILES.items():
        d = (both["value"] - both[name]) / unit
        pinball = pinball + np.maximum(q * d, (q - 1) * d) / len(QUANTILES)
    inside = (both["value"] >= both["lo-90"]) & (both["value"] <= both["hi-90"])
    return {
        "rmse": float(np.sqrt((error**2).groupby(group).mean()).mean()),
        "mae": float(error.abs().groupby(group).mean().mean()),
        "pinball": float(pinball.groupby(group).mean().mean()),
        "inside90": float(inside.groupby(group).mean().mean()),
        "width90": float(((both["hi-90"] - both["lo-90"]) / unit).groupby(group).mean().mean()),
    }


def run(folder: Path, model: str, seed: int) -> list[dict[str, object]]:
    """Fit once and do both tasks."""
    train = pd.read_parquet(folder / "train.parquet")
    deviation = train.drop(columns=["sid", "time"]).std()
    started = time.process_time()
    forecaster = cru.Forecaster(model, seed=seed, progress=False).fit(train, id="sid", time="time")
    fit = time.process_time() - started
    rows = []
    for task in TASKS:
        context = pd.read_parquet(folder / f"{task}-context.parquet")
        cells = pd.read_parquet(folder / f"{task}-cells.parquet")
        started = time.process_time()
        said = forecaster.predict(context, at=cells[["sid", "time"]].drop_duplicates(), level=[50, 90])
        seconds = time.process_time() - started
        rows.append(
            {"table": folder.name, "task": task, "model": model, "seed": seed}
            | score(cells, said, deviation)
            | {"fit": fit, "predict": seconds}
        )
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default="air,diabetes,physionet")
    parser.add_argument("--models", default="mlp,structural")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("build/bench/peers.csv"))
    asked = parser.parse_args()
    place = Path(os.environ["CRU_BENCH_DIR"])
    rows = []
    for table in asked.tables.split(","):
        for model in asked.models.split(","):
            seeds = range(asked.first, asked.first + (asked.seeds if model != "structural" else 1))
            for seed in seeds:
                rows += run(place / "tables" / table, model, seed)
    found = pd.DataFrame(rows)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    found.to_csv(asked.out, index=False)
    median = found.groupby(["table", "task", "model"])[[*COLUMNS, "fit", "predict"]].median().reset_index()
    peers = place / "scores.csv"
    if peers.exists():
        others = pd.read_csv(peers).rename(columns={"method": "model"})
        median = pd.concat([median, others[others["table"].isin(median["table"])]])
    print(median.sort_values(["table", "task", "rmse"]).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
