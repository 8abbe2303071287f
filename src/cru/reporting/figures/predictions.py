"""Figures of one series with the predictions of a model, or of some series of a dataset."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from cru.data.series import SeriesSet
from cru.evaluation.evaluate import SeriesPrediction
from cru.reporting.figures.style import BLUE, GREY, INK, SKY, make_figure, show_image, style_axes, time_label, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDS = (0.9, 0.5)  # levels of the prediction intervals


def draw_series(
    output: SeriesPrediction,
    *,
    regression: bool,
    names: Sequence[str],
    units: Sequence[str] = (),
    time_unit: str = "",
    title: str = "",
    rows: int = 5,
) -> "Figure":
    """Draw a panel for each of the features with most targets.

    A panel shows observed and withheld values, or the targets of a regression, and the mean with 50 and 90 % intervals.

    Args:
        output: the series and its predictions.
        regression: whether the task is a regression.
        names: the names of the targets.
        units: the units of the targets.
        time_unit: the unit of the times.
        title: the title of the figure.
        rows: the largest number of panels.

    Raises:
        ValueError: the predictions have no intervals.
    """
    if output.std is None:
        raise ValueError(
            "the figure 'series' needs Gaussian predictions of features. Use the figure 'trajectory' for images."
        )
    chosen = np.sort(np.argsort(-output.target_mask.sum(0), kind="stable")[:rows])
    figure = make_figure(7.4, 1.2 + 1.35 * len(chosen))
    axes = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    for axis, k in zip(axes, chosen, strict=True):
        mean, std = output.mean[:, k], output.std[:, k]
        for level, alpha in zip(BANDS, (0.25, 0.45), strict=True):
            width = NormalDist().inv_cdf((1 + level) / 2)
            low, high = mean - width * std, mean + width * std
            axis.fill_between(
                output.times, low, high, color=SKY, alpha=alpha, linewidth=0, label=f"{level:.0%} interval"
            )
        axis.plot(output.times, mean, color=BLUE, linewidth=1.3, label="mean")
        known, hidden = output.target_mask[:, k], output.hidden[:, k]
        if regression:  # the inputs are another quantity
            axis.plot(
                output.times[known], output.targets[known, k], color=INK, linewidth=0.9, linestyle="--", label="truth"
            )
        else:
            shown, withheld = known & ~hidden, known & hidden
            axis.plot(output.times[shown], output.targets[shown, k], ".", color=INK, markersize=4, label="seen")
            if withheld.any():
                open_dots = {"markerfacecolor": "white", "markeredgewidth": 0.7, "markersize": 3.2, "color": INK}
                axis.plot(output.times[withheld], output.targets[withheld, k], "o", label="withheld", **open_dots)
        known_values = output.targets[known, k]
        if len(known_values):
            margin = 0.25 * float(np.ptp(known_values)) or 1.0  # 1 for a constant feature
            axis.set_ylim(float(known_values.min()) - margin, float(known_values.max()) + margin)
        style_axes(axis, y=with_unit(names[k], units[k] if units else ""))
        axis.yaxis.label.set_fontsize(8)
    style_axes(axes[-1], x=time_label(time_unit))
    style_axes(axes[0], title=title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def draw_dataset(series: SeriesSet, *, title: str = "", count: int = 4) -> "Figure":
    """Draw typical series: rows of frames for images, dots over time for features.

    Args:
        series: the series.
        title: the title of the figure.
        count: the number of series.
    """
    typical = np.flatnonzero(series.lengths >= np.median(series.lengths))
    chosen = np.unique(typical[np.linspace(0, len(typical) - 1, count).astype(int)])
    shown = series.take(chosen)
    figure = _frames(shown) if series.is_image else _lines(shown)
    figure.suptitle(title, fontsize=11)
    return figure


def _frames(series: SeriesSet, count: int = 12) -> "Figure":
    """Draw each series as a row of equally spaced images, with frame number and fraction of noise."""
    figure = make_figure(12.0, 1.2 * len(series) + 0.5)
    axes = figure.subplots(len(series), count, squeeze=False)
    for i, row in enumerate(axes):
        start, stop = series.offsets[i : i + 2]
        steps = np.linspace(start, stop - 1, count).astype(int)
        for step, axis in zip(steps, row, strict=True):
            show_image(axis, series.values[step, 0] / 255)
            noise = series.per_time["noise"][step] if "noise" in series.per_time else 1.0
            share = f", {1 - noise:.0%} noise" if noise < 1 else ""
            axis.set_title(f"t = {series.times[step]:g}{share}", fontsize=7)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"sequence {series.ids[i]}", fontsize=8)
    return figure


def _lines(series: SeriesSet, rows: int = 5) -> "Figure":
    """Draw the features with most observations in rows, and the series in columns."""
    features = np.sort(np.argsort(-series.mask.sum(0), kind="stable")[:rows])
    figure = make_figure(3.3 * len(series) + 0.7, 1.3 * len(features) + 1)
    axes = figure.subplots(len(features), len(series), squeeze=False, sharex="col", sharey="row")
    for k, row in zip(features, axes, strict=True):
        for i, axis in enumerate(row):
            part = slice(series.offsets[i], series.offsets[i + 1])
            seen = series.mask[part, k]
            times, values = series.times[part][seen], series.values[part, k][seen]
            axis.plot(times, values, "-", color=GREY, linewidth=0.4)
            axis.plot(times, values, ".", color=BLUE, markersize=2.5)
            style_axes(axis)
        style_axes(row[0], y=with_unit(series.names[k], series.units[k] if series.units else ""))
    for i, axis in enumerate(axes[0]):
        style_axes(axis, title=series.ids[i])
    for axis in axes[-1]:
        style_axes(axis, x=time_label(series.time_unit))
    return figure
