"""A picture of a few series or frames."""

from pathlib import Path

import numpy as np

from cru.data.series import SeriesSet

_INK, _MUTED = "#0072B2", "#999999"  # told apart by every eye, and in print


def png_path(path: Path) -> Path:
    """``path``, if a picture can go there."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"the picture must be a .png file, got {path}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the picture must go to a folder that exists: there is no {path.parent}.")
    return path


def draw(series: SeriesSet, path: Path, *, title: str, count: int = 4) -> None:
    """Write a PNG of ``count`` series: frames in a row for images, dots over time for features."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    typical = np.flatnonzero(series.lengths >= np.median(series.lengths))
    chosen = np.unique(typical[np.linspace(0, len(typical) - 1, count).astype(int)])
    shown = series.take(chosen)
    figure = _frames(shown) if series.is_image else _lines(shown)
    figure.suptitle(title, fontsize=11)
    FigureCanvasAgg(figure)
    figure.savefig(png_path(path))


def _frames(series: SeriesSet, count: int = 12):  # type: ignore[no-untyped-def] # matplotlib would have to be imported
    """Each series a row of images at even steps of its 50, with frame number and share of noise above."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 1.2 * len(series) + 0.5), dpi=100, layout="constrained")
    axes = figure.subplots(len(series), count, squeeze=False)
    for i, row in enumerate(axes):
        start, stop = series.offsets[i : i + 2]
        steps = np.linspace(start, stop - 1, count).astype(int)
        for step, ax in zip(steps, row, strict=True):
            ax.imshow(series.values[step, 0], cmap="gray", vmin=0, vmax=255)
            noise = series.per_time["noise"][step] if "noise" in series.per_time else 1.0
            ax.set_title(f"t = {series.times[step]:g}" + (f", {1 - noise:.0%} noise" if noise < 1 else ""), fontsize=7)
            ax.set_xticks([])
            ax.set_yticks([])
        row[0].set_ylabel(f"sequence {series.ids[i]}", fontsize=8)
    return figure


def _lines(series: SeriesSet, rows: int = 5):  # type: ignore[no-untyped-def] # as above
    """The features observed most, one row each, one column a series."""
    from matplotlib.figure import Figure

    features = np.sort(np.argsort(-series.mask.sum(0), kind="stable")[:rows])
    figure = Figure(figsize=(3.3 * len(series) + 0.7, 1.3 * len(features) + 1), dpi=100, layout="constrained")
    axes = figure.subplots(len(features), len(series), squeeze=False, sharex="col", sharey="row")
    for k, row in zip(features, axes, strict=True):
        for i, ax in enumerate(row):
            part = slice(series.offsets[i], series.offsets[i + 1])
            seen = series.mask[part, k]
            times, values = series.times[part][seen], series.values[part, k][seen]
            ax.plot(times, values, "-", color=_MUTED, linewidth=0.4)
            ax.plot(times, values, ".", color=_INK, markersize=2.5)
            ax.tick_params(labelsize=7)
            ax.spines[["top", "right"]].set_visible(False)
        unit = f"\n[{series.units[k]}]" if series.units and series.units[k] else ""
        row[0].set_ylabel(series.names[k] + unit, fontsize=8)
    for i, ax in enumerate(axes[0]):
        ax.set_title(series.ids[i], fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel(f"time [{series.time_unit}]", fontsize=8)
    return figure
