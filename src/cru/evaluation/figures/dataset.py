"""A few series or frames of a dataset, as they are."""

from typing import TYPE_CHECKING

import numpy as np

from cru.data.series import SeriesSet
from cru.evaluation.figures.palette import BLUE, GREY
from cru.evaluation.figures.style import grey, make_figure, plain, time_label, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_dataset(series: SeriesSet, *, title: str = "", count: int = 4) -> "Figure":
    """``count`` typical series: frames in a row for images, dots over time for features."""
    typical = np.flatnonzero(series.lengths >= np.median(series.lengths))
    chosen = np.unique(typical[np.linspace(0, len(typical) - 1, count).astype(int)])
    shown = series.take(chosen)
    figure = _frames(shown) if series.is_image else _lines(shown)
    figure.suptitle(title, fontsize=11)
    return figure


def _frames(series: SeriesSet, count: int = 12) -> "Figure":
    """Each series a row of images at even steps of its 50, with frame number and share of noise above."""
    figure = make_figure(12.0, 1.2 * len(series) + 0.5)
    axes = figure.subplots(len(series), count, squeeze=False)
    for i, row in enumerate(axes):
        start, stop = series.offsets[i : i + 2]
        steps = np.linspace(start, stop - 1, count).astype(int)
        for step, axis in zip(steps, row, strict=True):
            grey(axis, series.values[step, 0] / 255)
            noise = series.per_time["noise"][step] if "noise" in series.per_time else 1.0
            share = f", {1 - noise:.0%} noise" if noise < 1 else ""
            axis.set_title(f"t = {series.times[step]:g}{share}", fontsize=7)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"sequence {series.ids[i]}", fontsize=8)
    return figure


def _lines(series: SeriesSet, rows: int = 5) -> "Figure":
    """The features observed most, one row each, one column a series."""
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
            plain(axis)
        plain(row[0], y=with_unit(series.names[k], series.units[k] if series.units else ""))
    for i, axis in enumerate(axes[0]):
        plain(axis, title=series.ids[i])
    for axis in axes[-1]:
        plain(axis, x=time_label(series.time_unit))
    return figure
