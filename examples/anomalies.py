"""Find injected faults in a table of real sensors.

    python examples/anomalies.py [TABLE] [--minutes 4] [--level 0.001]

TABLE is a .csv or .parquet file with the columns "sid" and "time" and one column for each sensor, such as UCI Air
Quality. Default: tables/air/train.parquet in the folder CRU_BENCH_DIR. The first three quarters train the forecaster.
The last quarter gets faults of one kind at a time. An alarm is right if it falls into a fault, or on the first
observation after it. With --small the sensors are simulated, and everything takes seconds.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

from cru import Forecaster

KEYS = ["sid", "time"]
FAULTS = {"spike": 1, "stuck": 24, "drift": 48}  # length in observations
SIZE = {"spike": 1.5, "stuck": 0.0, "drift": 2.0}  # largest change, in standard deviations of the sensor
EVENTS = 6  # faults of each sensor


def made_up() -> pd.DataFrame:
    """Two sensors with a daily cycle and slow changes."""
    rng = np.random.default_rng(0)
    time = pd.date_range("2024-01-01", periods=1800, freq="h")
    day = np.sin(2 * np.pi * np.arange(len(time)) / 24)
    walks = {name: np.cumsum(rng.normal(0, 0.12, len(time))) for name in ("north", "south")}
    return pd.DataFrame({"sid": 0, "time": time} | {name: np.round(20 + 3 * day + w, 2) for name, w in walks.items()})


def break_sensors(table: pd.DataFrame, kind: str, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Inject faults of one kind into all sensors.

    Returns:
        The broken table, and for each of its values the number of its fault, 0 for none.
    """
    broken, fault = table.copy(), pd.DataFrame(0, index=table.index, columns=table.columns)
    number = 0
    for name in table.columns.difference(KEYS):
        seen, length = table.index[table[name].notna()], FAULTS[kind]
        room = len(seen) // EVENTS
        for event in range(EVENTS):
            start = event * room + int(rng.integers(1, room - length - 1))
            rows = seen[start : start + length]
            change = rng.choice([-1, 1]) * SIZE[kind] * table[name].std() * np.arange(1, length + 1) / length
            held = table.loc[seen[start - 1], name] if kind == "stuck" else table.loc[rows, name]
            broken.loc[rows, name] = held + change
            number += 1
            fault.loc[rows, name] = number
    return broken, fault


def large_differences(train: pd.DataFrame, table: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return where the z-score of the change since the last observation is larger than in ``level`` of training."""
    found = pd.DataFrame(False, index=table.index, columns=table.columns)
    for name in table.columns.difference(KEYS):
        before, now = (frame[name].dropna().diff().dropna() for frame in (train, table))
        limit = ((before - before.mean()).abs() / before.std()).quantile(1 - level)
        score = (now - before.mean()).abs() / before.std()
        found.loc[score.index, name] = score > limit
    return found


def forecast_errors(model: Forecaster, table: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return which values are anomalies for the forecaster."""
    said = model.anomalies(table, level=level).pivot(index=KEYS, columns="variable", values="anomaly")
    wide = said.reindex(pd.MultiIndex.from_frame(table[KEYS])).astype("boolean").fillna(False).astype(bool)
    return wide.set_axis(table.index).reindex(columns=table.columns, fill_value=False)


def scores(alarm: pd.DataFrame, fault: pd.DataFrame, table: pd.DataFrame) -> dict[str, float]:
    """Return precision of the alarms, recall of the faults, and false alarms in 1000 normal observations."""
    right = wrong = normal = 0
    found: set[int] = set()
    for name in table.columns.difference(KEYS):
        seen = table[name].notna()
        number, alarms = fault.loc[seen, name].to_numpy(), alarm.loc[seen, name].to_numpy()
        before = np.concatenate([[0], number[:-1]])
        touched = np.where(number > 0, number, before)  # the first observation after a fault, too
        right += int((alarms & (touched > 0)).sum())
        wrong += int((alarms & (touched == 0)).sum())
        normal += int((touched == 0).sum())
        found |= set(number[alarms & (number > 0)].tolist())
    total = int(fault.to_numpy().max())
    return {
        "precision": right / max(1, right + wrong),
        "recall": len(found) / total,
        "false alarms in 1000": 1000 * wrong / normal,
    }


def main() -> None:
    """Fit, inject, and print one row for each kind of fault and method."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("table", nargs="?", type=Path)
    options.add_argument("--minutes", type=float, default=4.0)
    options.add_argument("--level", type=float, default=0.001)
    options.add_argument("--small", action="store_true")
    given = options.parse_args()
    folder = Path(os.environ.get("CRU_BENCH_DIR", ".")) / "tables" / "air"
    path = given.table or folder / "train.parquet"
    path = path / "train.parquet" if path.is_dir() else path
    read = pd.read_parquet if path.suffix == ".parquet" else pd.read_csv
    table = made_up() if given.small else read(path)
    cut = table["time"].sort_values().iloc[3 * len(table) // 4]
    train, later = table[table["time"] < cut], table[table["time"] >= cut].reset_index(drop=True)
    model = Forecaster(minutes=given.minutes, epochs=1 if given.small else None, progress=not given.small)
    model.fit(train, id="sid", time="time")
    rows = []
    for kind in FAULTS:
        broken, fault = break_sensors(later, kind, np.random.default_rng(0))
        alarms = {
            "forecaster": forecast_errors(model, broken, given.level),
            "z-score of differences": large_differences(train, broken, given.level),
        }
        rows += [{"fault": kind, "method": name} | scores(alarm, fault, broken) for name, alarm in alarms.items()]
    print(pd.DataFrame(rows).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
