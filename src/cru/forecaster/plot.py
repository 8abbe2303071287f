"""Plot one series: observations, mean, 50 % and 90 % intervals, and shaded gaps without observations."""

from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np

from cru.data.columns import DataTable
from cru.data.tables import check_key, codes
from cru.errors import InputError, literal, some
from cru.forecaster.estimator import Forecaster
from cru.forecaster.queries import insert_query_times, last_observation_times
from cru.reporting.figures.style import BLUE, GREY, INK, SKY, make_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAP = "#EFEFEF"
_POINTS = 400  # of the curves, in addition to the times of the observations
_LONG = 5  # a gap is shaded if it is longer than this many median gaps
_PANELS = 8


def draw(forecaster: Forecaster, table: Any, *, series: str | None = None, horizon: Any = None) -> "Figure":
    """Plot the observations and predictions of one series, with a forecast after the last observation.

    The figure has one panel for each variable, and shows at most the 8 variables with the most observations.

    Args:
        forecaster: a fitted forecaster.
        table: the observations, with the columns of the training table.
        series: id of the series. None: the series of the first row.
        horizon: length of the forecast. None: a tenth of the time span, but at least 5 median gaps.

    Raises:
        NotFittedError: the forecaster is not fitted.
        ValueError: the table, the horizon or the id is wrong.
    """
    forecaster._check_fitted()
    readings, name = one_series(forecaster, table, series)
    clock = forecaster.clock_
    seen = forecaster._series(readings)
    first, last = seen.times[0], last_observation_times(seen)[0]
    ahead = clock.duration(horizon, "horizon") if horizon is not None else max((last - first) / 10, 5 * forecaster.gap_)
    # Points just before each observation show how a causal model jumps there.
    tick = (last + ahead - first) * 1e-4
    grid = np.unique(np.concatenate([np.linspace(first, last + ahead, _POINTS), seen.times, seen.times[1:] - tick]))
    said = forecaster._answer(insert_query_times(seen, [grid]), (50.0, 90.0), polars=False)
    shown = np.sort(np.argsort(-seen.mask.sum(0), kind="stable")[:_PANELS])
    return _figure(forecaster, seen, said, shown, name)


def one_series(forecaster: Forecaster, table: Any, series: str | None) -> tuple[DataTable, str]:
    """Return the rows of one series, and its id."""
    columns = forecaster.columns_
    frame = columns.read(table)
    if columns.id is None:
        return frame, ""
    check_key(frame[columns.id])
    names, owner = codes(frame[columns.id])
    chosen = names[owner[0]] if series is None else series
    if chosen not in names:
        hint = literal(f"The table has {some(names, 5)}; there is no {chosen!r}.")
        raise InputError("series", "be a series of the table", repr(chosen), hint)
    return frame.filter(owner == names.index(chosen)), chosen


def _figure(forecaster: Forecaster, seen: Any, said: Any, shown: np.ndarray, name: str) -> "Figure":
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    clock, columns = forecaster.clock_, forecaster.columns_
    figure = make_figure(9.0, 1.0 + 1.9 * len(shown))
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    said, variable = nw.from_native(said, eager_only=True), columns.variable or "variable"
    for panel, k in zip(panels, shown, strict=True):
        part = said.filter(nw.col(variable) == forecaster.names_[k])
        time = part[columns.time].to_numpy()
        where = seen.mask[:, k]
        stamps = clock.stamps(seen.times[where])
        for start, stop in _gaps(seen.times[where], _LONG * forecaster.gap_):
            edges = clock.stamps(np.array([start, stop]))
            panel.axvspan(edges[0], edges[1], color=_GAP, linewidth=0, zorder=0)
        for level, alpha in ((90, 0.25), (50, 0.45)):
            low, high = part[f"lo-{level}"].to_numpy(), part[f"hi-{level}"].to_numpy()
            panel.fill_between(time, low, high, color=SKY, alpha=alpha, linewidth=0, label=f"{level} %")
        panel.plot(time, part["mean"].to_numpy(), color=BLUE, linewidth=1.2, label="mean")
        panel.plot(stamps, seen.values[where, k], ".", color=INK, markersize=4, label="reading")
        last = clock.stamps(last_observation_times(seen))[0]
        panel.axvline(last, color=GREY, linewidth=0.8, linestyle=":")
        style_axes(panel, y=forecaster.names_[k])
        panel.margins(x=0.01)
    if clock.kind == "number":
        style_axes(panels[-1], x=columns.time)
    else:
        locator = AutoDateLocator(tz=clock.zone, maxticks=10)  # type: ignore[no-untyped-call]
        panels[-1].xaxis.set_major_locator(locator)
        panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=clock.zone))  # type: ignore[no-untyped-call]
        style_axes(panels[-1], x=clock.zone or "")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(f"{columns.id} {name}" if columns.id else "", x=0.02, ha="left", fontsize=10)
    return figure


def _gaps(times: np.ndarray, long: float) -> list[tuple[float, float]]:
    """Return the start and end of each gap between observations that is longer than ``long``."""
    wide = np.flatnonzero(np.diff(times) > long)
    return [(float(times[i]), float(times[i + 1])) for i in wide]
