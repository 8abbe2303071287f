"""The first part of the demo: forecast held-out weather stations, next to naive models.

All four models get the same training stations, the same observations before each forecast, and the same calibration.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import cru
from cru.reporting.figures.style import BLUE, GREY, INK, RED, SKY, make_figure, save, style_axes

MODELS = {
    "Forecaster()": "mlp",
    "last value": "last-value",
    "one year ago": "seasonal-naive",
    "climatology": "climatology",
}
UNITS = {"TMAX": "°C", "TMIN": "°C", "PRCP": "mm", "SNWD": "mm"}
QUANTILES = {"lo-90": 0.05, "lo-50": 0.25, "median": 0.5, "hi-50": 0.75, "hi-90": 0.95}
CUTS, HORIZON = 12, 14  # forecasts of each station, and their length in days
BEFORE, AFTER, AHEAD = 45, 25, 28  # days of the figure: before the gap, after it, and of the forecast
COLUMNS = {"id": "station", "time": "date"}


def show(console: Console, out: Path, *, small: bool) -> tuple[cru.Forecaster, pd.DataFrame]:
    """Fit, forecast, print the scores and draw the figure. Return the default forecaster and the held-out stations."""
    table = cru.data.sample("weather")
    stations = table["station"].unique()[: 20 if small else None]
    held_out = stations[4::5]
    train = table[table["station"].isin(set(stations) - set(held_out))]
    test = table[table["station"].isin(held_out)]
    console.print(
        f"{len(stations) - len(held_out)} stations train, {len(held_out)} are held out: {CUTS if not small else 2} "
        f"forecasts of {HORIZON} days for each."
    )
    fitted, found = {}, {}
    for title, name in MODELS.items():
        fitted[title] = cru.Forecaster(name, epochs=1 if small else None).fit(train, **COLUMNS)
        found[title] = forecast(fitted[title], test, 2 if small else CUTS)
    console.print(score_table(found, train))
    for line in lost(found):
        console.print(line)
    path = draw(fitted["Forecaster()"], test, out / "weather.png")
    console.print(f"Figure: {path}")
    return fitted["Forecaster()"], test


def forecast(model: cru.Forecaster, table: pd.DataFrame, cuts: int) -> pd.DataFrame:
    """Forecast each station from random days of its own on. Return one row for each value that came."""
    rng, found = np.random.default_rng(0), []
    first, last = table["date"].min() + pd.Timedelta(days=365), table["date"].max() - pd.Timedelta(days=HORIZON)
    came = table.melt(["station", "date"], list(UNITS), "variable", "value").dropna()
    stations = table["station"].unique()
    for _ in range(cuts):
        cut = dict(zip(stations, first + rng.random(len(stations)) * (last - first), strict=True))
        known = table[table["date"] <= table["station"].map(cut)]
        answers = model.forecast(known, horizon=f"{HORIZON}D", every="1D", level=[50, 90])
        found.append(answers.merge(came, on=["station", "date", "variable"]))
    return pd.concat(found, ignore_index=True)


def quantile_loss(found: pd.DataFrame) -> pd.Series:
    """Return the loss of five quantiles for each row: it scores means and intervals together."""
    losses = [
        np.maximum(q * (found["value"] - found[name]), (q - 1) * (found["value"] - found[name]))
        for name, q in QUANTILES.items()
    ]
    return sum(losses) / len(losses)


def score_table(found: dict[str, pd.DataFrame], train: pd.DataFrame) -> Table:
    """Make the table of scores. The best of each column is bold."""
    spread = train[list(UNITS)].std()
    rows = {}
    for title, each in found.items():
        error = (each["value"] - each["median"]).abs().groupby(each["variable"]).mean()
        loss = quantile_loss(each).groupby(each["variable"]).mean() / spread
        inside = each["value"].between(each["lo-90"], each["hi-90"]).mean()
        rows[title] = [*(error[name] for name in UNITS), loss.mean(), inside]
    best = [min(row[k] for row in rows.values()) for k in range(len(UNITS) + 1)]
    table = Table(box=SIMPLE, title="Mean absolute error, loss of quantiles, and coverage of the 90 % intervals")
    for header in ("", *(f"{name}, {unit}" for name, unit in UNITS.items()), "loss", "inside"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for title, row in rows.items():
        cells = [f"[bold]{x:.2f}[/bold]" if x == least else f"{x:.2f}" for x, least in zip(row[:4], best, strict=False)]
        loss = f"{row[4]:.3f}"
        table.add_row(title, *cells, f"[bold]{loss}[/bold]" if row[4] == best[4] else loss, f"{row[5]:.1%}")
    table.caption = (
        f"{len(found['Forecaster()']):,} values. The loss is the mean of the variables, in standard deviations."
    )
    return table


def lost(found: dict[str, pd.DataFrame]) -> list[str]:
    """Return a sentence for each variable on which a naive model has a smaller error than the default."""
    errors = {
        title: (each["value"] - each["median"]).abs().groupby(each["variable"]).mean() for title, each in found.items()
    }
    own = errors.pop("Forecaster()")
    lines = []
    for name, unit in UNITS.items():
        rival = min(errors, key=lambda title: errors[title][name])
        if errors[rival][name] < own[name]:
            lines.append(f"{name}: {rival} has the smaller error ({errors[rival][name]:.2f} {unit}).")
    return lines


def draw(model: cru.Forecaster, table: pd.DataFrame, path: Path) -> Path:
    """Draw the held-out station with the longest gap: observations, intervals, the gap and a forecast."""
    station, gap = longest_gap(table)
    cut = gap[1] + pd.Timedelta(days=AFTER)
    days = pd.date_range(gap[0] - pd.Timedelta(days=BEFORE), cut + pd.Timedelta(days=AHEAD))
    own = table[table["station"] == station]
    known, later = own[own["date"] <= cut], own[own["date"].between(cut, days[-1], inclusive="right")]
    answers = model.predict(known, at=days, level=[50, 90])
    figure = make_figure(9, 4.8)
    panels = figure.subplots(2, 1, sharex=True)
    for panel, name in zip(panels, ("TMAX", "TMIN"), strict=True):
        mine = answers[answers["variable"] == name]
        for level, alpha in ((90, 0.25), (50, 0.45)):
            edges = mine[f"lo-{level}"], mine[f"hi-{level}"]
            panel.fill_between(days, *edges, color=SKY, alpha=alpha, linewidth=0, label=f"{level} % interval")
        panel.plot(days, mine["mean"], color=BLUE, linewidth=1.5, label="mean")
        seen = known[known["date"] >= days[0]]
        panel.plot(seen["date"], seen[name], "o", color=RED, markersize=3, label="observation")
        hollow: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": INK, "markersize": 4}
        panel.plot(later["date"], later[name], "o", **hollow, label="observed later")
        panel.axvspan(*gap, color="#EFEFEF", zorder=0)
        panel.axvline(cut, color=GREY, linestyle=":")
        style_axes(panel, y=f"{name}, {UNITS[name]}")
        panel.margins(x=0.01)
    locator = AutoDateLocator()
    panels[-1].xaxis.set_major_locator(locator)
    panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
    label: dict[str, Any] = {"fontsize": 9, "color": INK, "va": "bottom", "transform": panels[0].get_xaxis_transform()}
    panels[0].text(gap[0] + (gap[1] - gap[0]) / 2, 1.0, "nothing observed", ha="center", **label)
    panels[0].text(cut, 1.0, " forecast", ha="left", **label)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(f"Station {station}, held out, {days[0].year}", x=0.02, ha="left", fontsize=10)
    return save(figure, path)


def longest_gap(table: pd.DataFrame) -> tuple[str, tuple[pd.Timestamp, pd.Timestamp]]:
    """Return the station and the edges of the longest gap of TMAX with enough days before and after it."""
    seen = table.dropna(subset=["TMAX"]).sort_values(["station", "date"])
    before = seen.groupby("station")["date"].shift()
    room = (before - table["date"].min() > pd.Timedelta(days=BEFORE)) & (
        table["date"].max() - seen["date"] > pd.Timedelta(days=AFTER + AHEAD)
    )
    row = (seen["date"] - before)[room].idxmax()
    return str(seen.loc[row, "station"]), (before[row], seen.loc[row, "date"])
