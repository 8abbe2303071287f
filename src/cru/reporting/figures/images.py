"""Figures of image sequences: frames with the Kalman gain, and interpolated frames."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cru.evaluation.evaluate import SeriesPrediction
from cru.reporting.figures.style import (
    GREY,
    INK,
    RED,
    line_style,
    make_figure,
    model_style,
    show_image,
    style_axes,
    time_label,
)
from cru.shapes import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_gain_noise(
    predictions: Mapping[str, SeriesPrediction], *, time_unit: str = "frame", count: int = 16, title: str = ""
) -> "Figure":
    """Draw noisy frames above the norm of the Kalman gain of each model, on the same time axis.

    The gain should be smaller for frames with more noise.

    Args:
        predictions: the predictions of each model for the same sequence.
        time_unit: the unit of the times.
        count: the number of frames.
        title: the title of the figure.

    Raises:
        ValueError: a prediction has no gain, or the sequences differ.
    """
    output = next(iter(predictions.values()))
    noise, gains = output.noise, {model: one.gain for model, one in predictions.items() if one.gain is not None}
    if noise is None or not noise.any() or not output.is_image or len(gains) < len(predictions):
        raise ValueError(
            "the figure 'gain-noise' needs noisy images and a Kalman gain, as in pendulum-regression with cru."
        )
    for model, one in predictions.items():
        if not np.array_equal(one.values, output.values, equal_nan=True):
            raise ValueError(
                f"the figure 'gain-noise' shows one test sequence, but {model} has another. Name runs on the same data."
            )
    figure = make_figure(8.0, 3.6)
    above, axis, below = figure.subplots(3, 1, sharex=True, height_ratios=[0.52, 2.2, 0.8])
    seen = output.observed  # a withheld frame has no image and no gain
    times, frames = output.times[seen], output.values[seen, 0]
    span = float(output.times[0]), float(output.times[-1])
    width = (span[1] - span[0]) / count
    for k in _apart(times, count, width):
        at = float(times[k])
        show_image(above, frames[k], (at - 0.46 * width, at + 0.46 * width, 0.0, 1.0))
    above.set(ylim=(0, 1))
    above.axis("off")
    for model, gain in gains.items():
        axis.plot(times, gain[seen], marker="o", markersize=3, label=model_style(model).name, **line_style(model))
    axis.set(ylim=(0, None))
    if len(gains) > 1:
        axis.legend(fontsize=8, frameon=False)
    below.fill_between(times, 100 * noise[seen], color=RED, alpha=0.5, step="mid", linewidth=0)
    below.set(ylim=(0, 100), xlim=(span[0] - 0.5 * width, span[1] + 0.5 * width), yticks=[0, 100])
    style_axes(axis, y="norm of the\nKalman gain [–]")
    style_axes(below, x=time_label(time_unit), y="noise [%]")
    above.set_title(title, loc="left", fontsize=10, color=INK)
    return figure


def draw_trajectory(
    predictions: Mapping[str, SeriesPrediction], *, time_unit: str = "frame", count: int = 18, title: str = ""
) -> "Figure":
    """Draw a sequence of images in rows: the truth, the inputs, and the predictions of each model.

    Args:
        predictions: the predictions of each model for the same sequence.
        time_unit: the unit of the times.
        count: the number of images in a row.
        title: the title of the figure.

    Raises:
        ValueError: the predictions are not images, or the sequences differ.
    """
    first = next(iter(predictions.values()))
    for model, output in predictions.items():
        if not output.is_image or output.mean.shape != output.values.shape:
            raise ValueError("the figure 'trajectory' needs predictions of images, as in pendulum-interpolation.")
        if not np.array_equal(output.targets, first.targets):
            raise ValueError(
                f"the figure 'trajectory' shows one test sequence, but {model} has another. Name runs on the same data."
            )
    step = _window(first, count)
    rows: dict[str, Float[np.ndarray, "time height width"]] = {"truth": first.targets[:, 0], "seen": first.values[:, 0]}
    rows |= {model_style(model).name: output.mean[:, 0] for model, output in predictions.items()}
    figure = make_figure(8.0, 0.5 + 0.52 * len(rows))
    axes = figure.subplots(len(rows), count, squeeze=False)
    for row, (name, frames) in zip(axes, rows.items(), strict=True):
        for axis, k in zip(row, step, strict=False):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if name == "seen" and not first.observed[k]:
                _blank(axis)
            else:
                show_image(axis, frames[k])
                axis.set_aspect("equal")
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    for axis, k in zip(axes[-1], step, strict=False):
        axis.set_xlabel(f"{first.times[k]:g}", fontsize=7, color=GREY)
    figure.supxlabel(time_label(time_unit), fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
    return figure


def pick_by_noise(predictions: list[SeriesPrediction]) -> SeriesPrediction:
    """Select the sequence with the largest standard deviation of noise, or the first one if the noise is unknown."""
    return max(predictions, key=lambda o: 0.0 if o.noise is None else float(np.std(o.noise)))


def _apart(times: Float[np.ndarray, " time"], count: int, width: float) -> list[int]:
    """Select time points at least ``width`` apart, so that their frames do not overlap."""
    chosen: list[int] = []
    for k, time in enumerate(times):
        if not chosen or time - times[chosen[-1]] >= width:
            chosen.append(k)
    return chosen[: count + 1]


def _window(output: SeriesPrediction, count: int) -> range:
    """Select the ``count`` consecutive frames with most changes between observed and withheld."""
    changes = np.abs(np.diff(output.observed.astype(int)))
    starts = range(max(1, len(output.times) - count + 1))
    start = max(starts, key=lambda s: int(changes[s : s + count - 1].sum()))
    return range(start, min(start + count, len(output.times)))


def _blank(axis: "Axes") -> None:
    axis.set_facecolor("#F2F2F2")
    axis.plot([0.35, 0.65], [0.5, 0.5], color=GREY, linewidth=1)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
