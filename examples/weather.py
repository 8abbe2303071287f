"""Forecast weather stations with gaps: docs/tutorials/first-forecast.md on all stations of the sample table.

    python examples/weather.py [--small] [--out docs/pictures]

48 stations train a default forecaster, which takes half a minute. 12 others are held out. With --small, few stations
and one epoch are enough to see that everything works.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tutorial import read_options, write

import cru

VALUES = ["TMAX", "TMIN"]
LABELS = {"TMAX": "highest of the day, °C", "TMIN": "lowest of the day, °C"}
START, DAYS = "1992-06-01", 110  # of the picture of one station
GAP, FORECAST = (35, 55), 95  # the days of it that are withheld, and its last day with an observation
CUTS, HORIZON = 20, 14  # forecasts of each station, and their length in days
INK, MEAN, BAND, OBSERVATION = "#222222", "#0072B2", "#56B4E9", "#D55E00"


def draw_gap(model: cru.Forecaster, table: pd.DataFrame, path: Path) -> None:
    """Draw one held-out station: three weeks are withheld, and the days after the last observation are forecast."""
    days = pd.date_range(START, periods=DAYS)
    shown = table[table["date"].between(days[0], days[-1])]
    station = shown.groupby("station")[VALUES].count().min(axis=1).idxmax()  # the one with the most observations
    own = table[(table["station"] == station) & (table["date"] <= days[-1])]
    withheld = own["date"].between(days[GAP[0]], days[GAP[1]]) | (own["date"] > days[FORECAST])
    answers = model.predict(own[~withheld], at=days, level=[50, 90])
    figure, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True)
    for axis, (name, label) in zip(axes, LABELS.items(), strict=True):
        mine = answers[answers["variable"] == name]
        for level, alpha in ((90, 0.25), (50, 0.45)):
            edges = mine[f"lo-{level}"], mine[f"hi-{level}"]
            axis.fill_between(days, *edges, color=BAND, alpha=alpha, lw=0, label=f"{level} % interval")
        axis.plot(days, mine["mean"], color=MEAN, lw=1.5, label="mean")
        seen, hidden = own[~withheld & (own["date"] >= days[0])], own[withheld]
        axis.plot(seen["date"], seen[name], "o", ms=3.5, color=OBSERVATION, label="observation")
        axis.plot(hidden["date"], hidden[name], "o", ms=4, mfc="white", mec=INK, mew=0.9, label="withheld")
        for first, last in (GAP, (FORECAST, DAYS - 1)):
            axis.axvspan(days[first], days[last], color="#999999", alpha=0.12, lw=0)
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high + 0.12 * (high - low))
    for day, text in ((sum(GAP) // 2, "three weeks withheld"), ((FORECAST + DAYS) // 2, "forecast")):
        axes[0].text(days[day], axes[0].get_ylim()[1], text, ha="center", va="top", fontsize=9, color=INK)
    axes[0].legend(ncols=5, fontsize=8.5, loc="lower left", bbox_to_anchor=(0, 1.02), frameon=False)
    axes[1].xaxis.set_major_formatter(matplotlib.dates.ConciseDateFormatter(axes[1].xaxis.get_major_locator()))
    write(figure, path)


def forecast_held_out(model: cru.Forecaster, table: pd.DataFrame, cuts: int) -> pd.DataFrame:
    """Forecast each station from ``cuts`` random days on, and return one row for each value that came.

    Each station has its own days. Stations share their weather, so a few days in common would be a small test.
    """
    rng, found = np.random.default_rng(0), []
    first, last = table["date"].min() + pd.Timedelta(days=365), table["date"].max() - pd.Timedelta(days=HORIZON)
    came = table.melt(["station", "date"], VALUES, "variable", "value").dropna()
    stations = table["station"].unique()
    for _ in range(cuts):
        cut = dict(zip(stations, first + rng.random(len(stations)) * (last - first), strict=True))
        before = table[table["date"] <= table["station"].map(cut)]
        answers = model.forecast(before, horizon=f"{HORIZON}D", every="1D", level=[50, 90])
        joined = answers.merge(came, on=["station", "date", "variable"])
        ended = joined["station"].map(before.groupby("station")["date"].max())
        found.append(joined.assign(lead=(joined["date"] - ended).dt.days))
    return pd.concat(found, ignore_index=True)


def draw_coverage(found: pd.DataFrame, path: Path) -> None:
    """Draw how wide the interval is and how often it contains the value, by lead time."""
    inside = found["value"].between(found["lo-90"], found["hi-90"])
    grouped = found.assign(width=found["hi-90"] - found["lo-90"], inside=inside).groupby("lead")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    axes[0].plot(grouped["width"].mean(), "o-", color=MEAN, ms=4)
    axes[0].set_ylabel("width of the 90 % interval, °C")
    axes[0].set_ylim(bottom=0)
    axes[1].axhline(90, color=INK, lw=0.8, ls="--")
    axes[1].plot(100 * grouped["inside"].mean(), "o-", color=OBSERVATION, ms=4)
    axes[1].set_ylabel("inside the interval, %")
    axes[1].set_ylim(50, 102)
    for axis in axes:
        axis.set_xlabel("days since the last observation")
        axis.spines[["top", "right"]].set_visible(False)
    write(figure, path)


def main() -> None:
    """Fit, forecast the held-out stations, draw both pictures, and print the coverage of the intervals."""
    options = read_options(__doc__)
    table = cru.data.sample("weather")
    stations = table["station"].unique()[: 10 if options.small else None]
    held_out = stations[4::5]
    train = table[table["station"].isin(set(stations) - set(held_out))]
    test = table[table["station"].isin(held_out)]
    model = cru.Forecaster(epochs=1 if options.small else None).fit(train, id="station", time="date", values=VALUES)
    draw_gap(model, test, options.out / "weather-gap.png")
    found = forecast_held_out(model, test, 2 if options.small else CUTS)
    draw_coverage(found, options.out / "weather-coverage.png")
    print(f"{train['station'].nunique()} stations train, {len(held_out)} are held out, {len(found)} values")
    for name, part in found.groupby("variable"):
        half, most = (part["value"].between(part[f"lo-{level}"], part[f"hi-{level}"]).mean() for level in (50, 90))
        error = (part["value"] - part["mean"]).abs().mean()
        print(f"{name}: {half:.1%} inside 50 %, {most:.1%} inside 90 %, mean absolute error {error:.1f} °C")
    width = (found["hi-90"] - found["lo-90"]).groupby(found["lead"]).mean()
    print("width of the 90 % interval: " + ", ".join(f"{width[day]:.0f} °C after {day} days" for day in (1, 7, 14)))


if __name__ == "__main__":
    main()
