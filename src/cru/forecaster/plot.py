"""A figure of one series: observations, mean, intervals, shaded gaps, and the components of the mean."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np

from cru.data.columns import DataTable
from cru.data.tables import check_key, codes
from cru.errors import InputError, did_you_mean, literal, some
from cru.forecaster.calibration import Z90
from cru.forecaster.components import CORRECTION_COMPONENT, Decomposition, check_structural, decompose, time_constants
from cru.forecaster.estimator import Forecaster
from cru.forecaster.queries import Query, default_horizon, last_observation_times
from cru.reporting.figures.style import BLUE, GREY, INK, SKY, make_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureConstants:
    """Sizes of the figure."""

    gap_color: str = "#EFEFEF"
    points: int = 400  # of the curves, in addition to the times of the observations
    long_gap: int = 5  # a gap is shaded if it is longer than this many median gaps
    max_panels: int = 8  # most variables
    width: float = 9.0  # of the figure, in inches
    panel_height: float = 1.9  # in inches
    component_height: float = 0.8  # of the panel of a component, in inches


FIGURE = FigureConstants()


def draw(
    forecaster: Forecaster,
    table: Any,
    *,
    series: str | None = None,
    horizon: Any = None,
    last: Any = None,
    variable: str | None = None,
    components: bool = False,
) -> "Figure":
    """Plot the observations and predictions of one series, with a forecast after the last observation.

    The figure has one panel for each variable, and shows at most the 8 variables with the most observations.

    Args:
        forecaster: a fitted forecaster.
        table: the observations, with the columns of the training table.
        series: id of the series. None: the series of the first row.
        horizon: length of the forecast. None: a tenth of the time shown, but at least 5 median gaps.
        last: length of the part to show, which ends at the last observation. None: the complete series.
        variable: the only variable to plot. None: all variables.
        components: whether to plot one variable, by default the one with the most observations, and below it a panel
            for each component.

    Returns:
        The figure.

    Raises:
        NotFittedError: the forecaster is not fitted.
        ValueError: the table, the horizon, the id or the variable is wrong, or the model has no components.
    """
    forecaster._check_fitted()
    if components:
        check_structural(forecaster)
    if variable is not None and variable not in forecaster.names_:
        hint = literal(did_you_mean(variable, forecaster.names_))
        raise InputError("variable", "be a variable of the training table", repr(variable), hint)
    observations, name = one_series(forecaster, table, series)
    clock = forecaster.clock_
    seen = forecaster._series(observations)
    end = last_observation_times(seen)[0]
    first = seen.times[0] if last is None else max(seen.times[0], end - clock.duration(last, "last"))
    ahead = clock.duration(horizon, "horizon") if horizon is not None else default_horizon(end - first, forecaster.gap_)
    # The prediction of a causal model jumps at an observation. Points just before each observation show the jump.
    tick = (end + ahead - first) * 1e-4
    grid = np.unique(
        np.concatenate([np.linspace(first, end + ahead, FIGURE.points), seen.times, seen.times[1:] - tick])
    )
    query = forecaster.query(seen, [grid[grid >= first]], hold=True)
    prediction = forecaster._prediction_frame(query, (50.0, 90.0), polars=False)
    shown = np.sort(np.argsort(-seen.mask.sum(0), kind="stable")[: 1 if components else FIGURE.max_panels])
    if variable is not None:
        shown = np.array([forecaster.names_.index(variable)])
    return _figure(forecaster, seen.keep(seen.times >= first), prediction, shown, name, query if components else None)


def one_series(forecaster: Forecaster, table: Any, series: str | None) -> tuple[DataTable, str]:
    """Select the rows of one series.

    Args:
        forecaster: a fitted forecaster.
        table: the observations.
        series: the id of the series. None: the series of the first row.

    Returns:
        The rows, and the id.

    Raises:
        InputError: the table has no such series.
    """
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


def _figure(
    forecaster: Forecaster, seen: Any, prediction: Any, shown: np.ndarray, name: str, query: Query | None
) -> "Figure":
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    clock, columns = forecaster.clock_, forecaster.columns_
    parts = None if query is None else decompose(forecaster, query)
    below = [] if parts is None else _visible(parts, int(shown[0]))
    heights = [FIGURE.panel_height] * len(shown) + [FIGURE.component_height] * len(below)
    figure = make_figure(FIGURE.width, 1.0 + sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    prediction, variable = nw.from_native(prediction, eager_only=True), columns.variable or "variable"
    for panel, k in zip(panels, shown, strict=False):
        part = prediction.filter(nw.col(variable) == forecaster.names_[k])
        time = part[columns.time].to_numpy()
        where = seen.mask[:, k]
        stamps = clock.stamps(seen.times[where])
        for start, stop in _gaps(seen.times[where], FIGURE.long_gap * forecaster.gap_):
            edges = clock.stamps(np.array([start, stop]))
            panel.axvspan(edges[0], edges[1], color=FIGURE.gap_color, linewidth=0, zorder=0)
        for level, alpha in ((90, 0.25), (50, 0.45)):
            low, high = part[f"lo-{level}"].to_numpy(), part[f"hi-{level}"].to_numpy()
            panel.fill_between(time, low, high, color=SKY, alpha=alpha, linewidth=0, label=f"{level} %")
        panel.plot(time, part["mean"].to_numpy(), color=BLUE, linewidth=1.2, label="mean")
        panel.plot(stamps, seen.values[where, k], ".", color=INK, markersize=4, label="observation")
        last = clock.stamps(last_observation_times(seen))[0]
        panel.axvline(last, color=GREY, linewidth=0.8, linestyle=":")
        style_axes(panel, y=forecaster.names_[k])
        panel.margins(x=0.01)
    if query is not None and parts is not None:
        _draw_components(forecaster, query, parts, below, int(shown[0]), panels[1:])
    if clock.kind == "number":
        style_axes(panels[-1], x=columns.time)
    else:
        locator = AutoDateLocator(tz=clock.zone, maxticks=10)  # type: ignore[no-untyped-call]
        panels[-1].xaxis.set_major_locator(locator)
        panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=clock.zone))  # type: ignore[no-untyped-call]
        panels[-1].xaxis.get_offset_text().set_fontsize(8)
        style_axes(panels[-1], x=clock.zone or "")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(f"{columns.id} {name}" if columns.id else "", x=0.02, ha="left", fontsize=10)
    return figure


def _visible(parts: Decomposition, variable: int) -> list[int]:
    """Return the level and the components of a variable that are not 0 everywhere."""
    return [0, *(1 + np.flatnonzero((parts.mean[:, variable, 1:] != 0).any(0))).tolist()]


def _draw_components(
    forecaster: Forecaster, query: Query, parts: Decomposition, shown: list[int], variable: int, panels: Any
) -> None:
    """Plot mean and 90 % interval of each component of one variable."""
    layer: Any = forecaster.model_.layer
    constants = time_constants(layer)[variable]
    time = forecaster.clock_.stamps(query.series.times[query.rows])
    observed = query.series.mask[query.rows, variable]
    for panel, number in zip(panels, shown, strict=True):
        name = parts.names[number]
        where = ~observed if name == CORRECTION_COMPONENT else np.ones_like(observed)  # observations are not corrected
        mean, std = (part[where, variable, number] for part in (parts.mean, parts.std))
        if number > 0:
            panel.axhline(0, color=GREY, linewidth=0.6)
        panel.fill_between(time[where], mean - Z90 * std, mean + Z90 * std, color=SKY, alpha=0.25, linewidth=0)
        panel.plot(time[where], mean, color=BLUE, linewidth=1.0)
        if 1 <= number <= len(constants):
            name = f"{name}\nover {forecaster.clock_.written(constants[number - 1])}"
        style_axes(panel)
        panel.set_ylabel(name, fontsize=8, rotation=0, ha="right", va="center")
        panel.locator_params(axis="y", nbins=3)
        panel.margins(x=0.01)


def _gaps(times: np.ndarray, long: float) -> list[tuple[float, float]]:
    """Return the start and end of each gap between observations that is longer than ``long``."""
    wide = np.flatnonzero(np.diff(times) > long)
    return [(float(times[i]), float(times[i + 1])) for i in wide]
