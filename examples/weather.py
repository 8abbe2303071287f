"""Forecast weather stations with gaps: docs/tutorials/first-forecast.md, on real stations.

    python examples/weather.py [--stations 700] [--minutes 12] [--out docs/pictures]

Needs the raw files of USHCN (CRU_DATA_DIR), or downloads them. The fitted model is kept in build/weather; delete
it to fit anew. With --small the stations are made up, and everything takes seconds.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tutorial import kept, read_options, write

from cru import Forecaster

VALUES = ["TMAX", "TMIN"]
INK, MEAN, BAND, READING = "#222222", "#0072B2", "#56B4E9", "#D55E00"


def made_up(count: int, days: int = 360) -> pd.DataFrame:
    """Stations with a season, weather that lasts a few days, and days on which nobody looked."""
    rng = np.random.default_rng(0)
    parts = []
    for station in range(count):
        weather = np.convolve(rng.normal(0, 2, days + 6), np.ones(7) / 2, "valid")
        season = 15 + rng.normal(0, 3) - 12 * np.cos(2 * np.pi * np.arange(days) / 365)
        part = pd.DataFrame({"date": pd.date_range("1990-01-01", periods=days), "TMAX": season + weather + 6})
        part = part.assign(TMIN=season + weather - 6 + rng.normal(0, 1, days), station=f"S{station:02d}")
        parts.append(part[rng.random(days) < 0.6])
    return pd.concat(parts, ignore_index=True)


def real(count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Readings of ``count`` stations to learn from, and of all that are held out: half of the days, a fifth missing."""
    import cru

    splits = cru.data.load("ushcn", scaling=None)
    return _frame(splits.train.first(count)), _frame(splits.test)


def _frame(series) -> pd.DataFrame:
    columns = [list(series.names).index(name) for name in VALUES]
    values = np.where(series.mask, series.values, np.nan)[:, columns].astype(float).round(1)
    date = pd.Timestamp("1990-01-01") + pd.to_timedelta(series.times, unit="D")
    frame = pd.DataFrame(values, columns=VALUES).assign(station=np.repeat(series.ids, series.lengths), date=date)
    return frame.dropna(subset=VALUES, how="all")


def gap_picture(model: Forecaster, table: pd.DataFrame, path: Path) -> None:
    """One station over 100 days: three weeks are taken away, and what comes after is forecast."""
    station = table["station"].unique()[min(7, table["station"].nunique() - 1)]
    start = table["date"].min() + pd.Timedelta(days=200)
    days = pd.date_range(start, periods=110)
    own = table[(table["station"] == station) & (table["date"] <= days[-1])]
    broken = own["date"].between(days[35], days[55]) | (own["date"] > days[95])
    answers = model.predict(own[~broken], at=days, level=[50, 90])
    figure, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True)
    for axis, name, unit in zip(
        axes, ("TMAX", "TMIN"), ("highest of the day, °C", "lowest of the day, °C"), strict=True
    ):
        mine = answers[answers["variable"] == name]
        for level, alpha in ((90, 0.25), (50, 0.45)):
            label = f"{level} % band"
            axis.fill_between(
                days, mine[f"lo-{level}"], mine[f"hi-{level}"], color=BAND, alpha=alpha, lw=0, label=label
            )
        axis.plot(days, mine["mean"], color=MEAN, lw=1.5, label="mean")
        shown, hidden = own[~broken & (own["date"] >= start)], own[broken]
        axis.plot(shown["date"], shown[name], "o", ms=3.5, color=READING, label="readings")
        axis.plot(hidden["date"], hidden[name], "o", ms=4, mfc="white", mec=INK, mew=0.9, label="kept from the model")
        axis.axvspan(days[35], days[55], color="#999999", alpha=0.12, lw=0)
        axis.axvspan(days[95], days[-1], color="#999999", alpha=0.12, lw=0)
        axis.set_ylabel(unit)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    high = axes[0].get_ylim()[1]
    axes[0].text(days[45], high, "three weeks missing", ha="center", va="top", fontsize=9, color=INK)
    axes[0].text(days[102], high, "forecast", ha="center", va="top", fontsize=9, color=INK)
    axes[0].legend(ncols=5, fontsize=8.5, loc="lower left", bbox_to_anchor=(0, 1.02), frameon=False)
    axes[1].xaxis.set_major_formatter(matplotlib.dates.ConciseDateFormatter(axes[1].xaxis.get_major_locator()))
    write(figure, path)


def coverage(model: Forecaster, table: pd.DataFrame, horizon: int = 14) -> pd.DataFrame:
    """Forecasts from four moments on, of each station's own, beside what came: one row for each value.

    Not the same four for all: stations share their weather, and four days of it would be few.
    """
    rng, found = np.random.default_rng(0), []
    first, span = table["date"].min(), table["date"].max() - table["date"].min()
    came = table.melt(["station", "date"], VALUES, "variable", "value").dropna()
    for _ in range(4):
        cut = {station: first + share * span for station, share in _shares(table, rng).items()}
        before = table[table["date"] <= table["station"].map(cut)]
        answers = model.forecast(before, horizon=f"{horizon}D", every="1D", level=[50, 90])
        joined = answers.merge(came, on=["station", "date", "variable"])
        joined = joined.join(before.groupby("station")["date"].max().rename("last"), on="station")
        found.append(joined.assign(lead=(joined["date"] - joined["last"]).dt.days))
    return pd.concat(found)


def _shares(table: pd.DataFrame, rng: np.random.Generator) -> dict[str, float]:
    stations = table["station"].unique()
    return dict(zip(stations, rng.uniform(0.2, 0.9, len(stations)), strict=True))


def coverage_picture(found: pd.DataFrame, path: Path) -> None:
    """How wide the band is, and how often it holds, by days ahead."""
    found = found.assign(
        width=found["hi-90"] - found["lo-90"], inside=found["value"].between(found["lo-90"], found["hi-90"])
    )
    grouped = found.groupby("lead")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    axes[0].plot(grouped["width"].mean(), "o-", color=MEAN, ms=4)
    axes[0].set_ylabel("width of the 90 % band, °C")
    axes[0].set_ylim(bottom=0)
    axes[1].axhline(90, color=INK, lw=0.8, ls="--")
    axes[1].plot(100 * grouped["inside"].mean(), "o-", color=READING, ms=4)
    axes[1].set_ylabel("inside the band, %")
    axes[1].set_ylim(50, 102)
    for axis in axes:
        axis.set_xlabel("days since the last reading")
        axis.spines[["top", "right"]].set_visible(False)
    write(figure, path)


def main() -> None:
    """Fit, draw both pictures, print how often the bands hold."""
    options = read_options(__doc__, "stations", 700)
    if options.small:
        table = made_up(12)
        model = Forecaster(epochs=1, progress=False).fit(table, id="station", time="date", values=VALUES)
    else:
        known, table = real(options.stations)
        empty = Forecaster(minutes=options.minutes)
        model = kept(Path("build/weather"), lambda: empty.fit(known, id="station", time="date", values=VALUES))
    gap_picture(model, table, options.out / "weather-gap.png")
    found = coverage(model, table)
    coverage_picture(found, options.out / "weather-coverage.png")
    for name, part in found.groupby("variable"):
        half, most = (part["value"].between(part[f"lo-{level}"], part[f"hi-{level}"]).mean() for level in (50, 90))
        error = (part["value"] - part["mean"]).abs().mean()
        print(
            f"{name}: {half:.1%} in the 50 % band, {most:.1%} in the 90 % band, of {len(part)}; off by {error:.1f} °C"
        )


if __name__ == "__main__":
    main()
