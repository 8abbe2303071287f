"""Watch intensive-care patients as observations arrive: docs/tutorials/intensive-care.md, on real patients.

    python examples/ward.py [--patients 4000] [--minutes 12] [--out docs/pictures]

Needs the raw files of the PhysioNet 2012 challenge (CRU_DATA_DIR), or downloads them. The fitted model is kept in
build/ward; delete it to fit anew. With --small the patients are simulated, and everything takes seconds.
"""

import time
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tutorial import load_or_fit, read_options, write

from cru import Forecaster

# Possible values. A detached sensor gives 0.
PLAUSIBLE = {"HR": (20, 250), "MAP": (20, 200), "NIMAP": (20, 200), "RespRate": (3, 70), "Temp": (30, 43)}
NAMES = {"HR": "heart rate", "MAP": "blood pressure (arterial line)", "NIMAP": "blood pressure (cuff)"}
NAMES |= {"RespRate": "breathing rate", "Temp": "temperature"}
UNITS = {"HR": "1/min", "MAP": "mmHg", "NIMAP": "mmHg", "RespRate": "1/min", "Temp": "°C"}
COLOURS = dict(zip(PLAUSIBLE, ("#D55E00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7"), strict=True))
MARKERS = dict(zip(PLAUSIBLE, "osD^v", strict=True))
INK = "#222222"


def simulated(count: int) -> pd.DataFrame:
    """Simulate patients: each variable is a random walk around the level of the patient, observed at random times."""
    rng = np.random.default_rng(0)
    parts = []
    for patient in range(count):
        hour = np.sort(rng.uniform(0, 48, 50)).round(2)
        drift = np.cumsum(rng.normal(0, 1, 50))
        levels = {"HR": 85, "MAP": 78, "NIMAP": 76, "RespRate": 19, "Temp": 37.0}
        scales = {"HR": 3, "MAP": 2, "NIMAP": 2, "RespRate": 0.7, "Temp": 0.05}
        part = pd.DataFrame({"patient": f"P{patient:03d}", "hour": hour})
        for name, level in levels.items():
            part[name] = level + scales[name] * (drift + rng.normal(0, 3) + rng.normal(0, 0.7, 50))
            part.loc[rng.random(50) < 0.5, name] = np.nan
        parts.append(part.dropna(subset=list(levels), how="all").drop_duplicates("hour"))
    return pd.concat(parts, ignore_index=True)


def real(count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return observations of ``count`` training patients and of 60 test patients."""
    import cru

    splits = cru.data.load("physionet", scaling=None)
    return _frame(splits.train.first(count)), _frame(splits.test.first(60))


def _frame(series) -> pd.DataFrame:
    columns = [list(series.names).index(name) for name in PLAUSIBLE]
    values = np.where(series.mask, series.values, np.nan)[:, columns].astype(float)
    frame = pd.DataFrame(values.round(2), columns=list(PLAUSIBLE))
    for name, (low, high) in PLAUSIBLE.items():
        frame[name] = frame[name].where(frame[name].between(low, high))
    frame = frame.assign(patient=np.repeat(series.ids, series.lengths), hour=series.times.round(3))
    return frame.dropna(subset=list(PLAUSIBLE), how="all")


def watch(model: Forecaster, table: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Return all observations in order, each with its prediction, and the milliseconds per update."""
    stream, found, spent = model.stream(), [], 0.0
    for row in table.sort_values("hour").to_dict("records"):
        patient, hour = row["patient"], row["hour"]
        values = {name: row[name] for name in PLAUSIBLE if not np.isnan(row[name])}
        known = patient in stream
        if known:  # nothing predicts the first observation
            expected = stream.predict(patient, hour, level=[90, 99])
            for name, value in values.items():
                found.append({"patient": patient, "hour": hour, "variable": name, "value": value, **expected[name]})
        start = time.process_time()
        stream.update(patient, hour, values)
        spent += time.process_time() - start
    return pd.DataFrame(found), 1e3 * spent / len(table)


def patient_picture(
    model: Forecaster, observations: pd.DataFrame, path: Path, names: tuple[str, ...] = ("HR", "MAP")
) -> None:
    """Draw each prediction from the observations before it. The interval widens until the next observation."""
    patient, stream, intervals = observations["patient"].iloc[0], model.stream(), []
    rows = iter([*observations.sort_values("hour").to_dict("records"), None])
    row = next(rows)
    for hour in np.arange(observations["hour"].min(), 48.01, 0.1):
        while row is not None and row["hour"] <= hour:
            stream.update(patient, row["hour"], {name: row[name] for name in PLAUSIBLE})
            row = next(rows)
        expected = stream.predict(patient, hour, level=[50, 90])
        intervals += [{"hour": hour, "variable": name, **expected[name]} for name in names]
    drawn = pd.DataFrame(intervals)
    figure, axes = plt.subplots(len(names), 1, figsize=(9, 2.6 * len(names)), sharex=True)
    for axis, name in zip(axes, names, strict=True):
        mine = drawn[drawn["variable"] == name]
        for level, alpha in ((90, 0.22), (50, 0.4)):
            edges = mine["hour"], mine[f"lo-{level}"], mine[f"hi-{level}"]
            axis.fill_between(*edges, color="#56B4E9", alpha=alpha, lw=0, label=f"{level} % interval")
        axis.plot(mine["hour"], mine["mean"], color="#0072B2", lw=1.3, label="expected")
        axis.plot(observations["hour"], observations[name], "o", ms=3.5, color="#D55E00", label="observations")
        axis.set_ylabel(f"{NAMES[name].split(' (')[0]}, {UNITS[name]}")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    axes[0].legend(ncols=4, fontsize=8.5, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False)
    axes[-1].set_xlabel("hours since admission")
    write(figure, path)


def board_picture(found: pd.DataFrame, path: Path, patients: int = 16) -> None:
    """Draw a line for each patient: a tick for each observation, a mark for each outside its 99 % interval."""
    shown = list(found["patient"].unique()[:patients])
    figure, axis = plt.subplots(figsize=(9, 0.26 * len(shown) + 1.3))
    for line, patient in enumerate(shown):
        mine = found[found["patient"] == patient]
        axis.plot(mine["hour"], np.full(len(mine), line), "|", color="#BBBBBB", ms=6, mew=0.7)
        odd = mine[~mine["value"].between(mine["lo-99"], mine["hi-99"])]
        for name, part in odd.groupby("variable"):
            axis.plot(part["hour"], np.full(len(part), line), MARKERS[name], color=COLOURS[name], ms=5.5)
    for name in PLAUSIBLE:
        axis.plot([], [], MARKERS[name], color=COLOURS[name], ms=5.5, label=NAMES[name])
    axis.set_yticks(range(len(shown)), [f"patient {patient}" for patient in shown], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("hours since admission")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.margins(x=0.01)
    axis.legend(ncols=5, fontsize=8, loc="lower left", bbox_to_anchor=(-0.1, 1.0), frameon=False, handletextpad=0.1)
    write(figure, path)


def main() -> None:
    """Fit, watch, draw both pictures, and print the coverage of the intervals."""
    options = read_options(__doc__, patients=4000, minutes=12.0)
    if options.small:
        table = simulated(24)
        model = Forecaster(epochs=1, progress=False).fit(table, id="patient", time="hour", values=list(PLAUSIBLE))
        table = table[table["patient"] < "P004"]
    else:
        known, table = real(options.patients)
        empty, values = Forecaster("cru", base=None, minutes=options.minutes), list(PLAUSIBLE)
        model = load_or_fit(Path("build/ward"), lambda: empty.fit(known, id="patient", time="hour", values=values))
    found, milliseconds = watch(model, table)
    # The patient with the most observations of both variables that are drawn.
    most = table.groupby("patient")[["HR", "MAP"]].count().min(axis=1).idxmax()
    patient_picture(model, table[table["patient"] == most], options.out / "ward-patient.png")
    board_picture(found, options.out / "ward-board.png")
    for name, part in found.groupby("variable"):
        most_of, nearly_all = (part["value"].between(part[f"lo-{n}"], part[f"hi-{n}"]).mean() for n in (90, 99))
        print(f"{name}: {most_of:.1%} in the 90 % interval, {nearly_all:.1%} in the 99 % interval, of {len(part)}")
    print(f"{milliseconds:.2f} ms of processor time an update")


if __name__ == "__main__":
    main()
