"""Figures that compare models: learning curves, calibration, error by gap, Kalman gain, runtime."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cru.evaluation.diagnostics import Curve
from cru.reporting.figures.style import (
    BLUE,
    GREY,
    INK,
    SKY,
    line_style,
    make_figure,
    model_style,
    style_axes,
    time_label,
)
from cru.shapes import Float

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor
    from torch.nn import Module


class Learning(NamedTuple):
    """The validation score of a run after each epoch."""

    epochs: list[int]
    scores: list[float]


def draw_curves(runs: Mapping[str, Sequence[Learning]], *, metric: str = "mse", title: str = "") -> "Figure":
    """Draw the validation score by epoch: all runs of a model in its colour, with a dot at the best epoch.

    Args:
        runs: the scores of each run, by model.
        metric: the name of the score.
        title: the title of the figure.
    """
    figure = make_figure(7.0, 4.0)
    axis = figure.subplots()
    lowest = float("inf")
    for model, curves in runs.items():
        for number, curve in enumerate(curves):
            axis.plot(
                curve.epochs, curve.scores, label=model_style(model).name if number == 0 else None, **line_style(model)
            )
            at = min(range(len(curve.scores)), key=curve.scores.__getitem__)
            axis.plot(curve.epochs[at], curve.scores[at], "o", color=model_style(model).light, markersize=4)
            lowest = min(lowest, *curve.scores)
    if lowest > 0:
        axis.set_yscale("log")
    unit = "nats per time point" if metric == "nll" else "model units²" if metric == "mse" else "model units"
    style_axes(axis, x="training [epochs]", y=f"validation {metric.upper()} [{unit}]", title=title)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def draw_calibration(curves: Mapping[str, Curve], *, title: str = "") -> "Figure":
    """Draw observed against nominal coverage of each model. A calibrated model is on the diagonal."""
    figure = make_figure(4.6, 4.4)
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axis.text(0.97, 0.62, "too sure", color=GREY, fontsize=8, ha="right")
    axis.text(0.06, 0.36, "too wide", color=GREY, fontsize=8)
    for model, curve in curves.items():
        axis.plot(curve.x, curve.y, marker="o", markersize=3, label=model_style(model).name, **line_style(model))
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ticks = [0, 0.25, 0.5, 0.75, 1]
    labels = [f"{tick:.0%}" for tick in ticks]
    axis.set_xticks(ticks, labels)
    axis.set_yticks(ticks, labels)
    style_axes(
        axis,
        x="nominal coverage of the central interval [% of targets]",
        y="observed coverage [% of targets]",
        title=title,
    )
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def draw_gaps(curves: Mapping[str, Curve], *, time_unit: str, error: str = "RMSE", title: str = "") -> "Figure":
    """Draw the error of each model by the time since the last observation.

    Args:
        curves: the error of each model.
        time_unit: the unit of the times.
        error: the label of the axis.
        title: the title of the figure.
    """
    figure = make_figure(6.0, 3.6)
    axis = figure.subplots()
    for model, curve in curves.items():
        axis.plot(curve.x, curve.y, marker="o", markersize=3.5, label=model_style(model).name, **line_style(model))
    furthest = max((max(curve.x, default=0.0) for curve in curves.values()), default=0.0)
    nearest = min((min(curve.x, default=1.0) for curve in curves.values()), default=1.0)
    if nearest > 0 and furthest > 50 * nearest:
        axis.set_xscale("log")
    axis.set_ylim(0, None)
    style_axes(axis, x=time_label(time_unit).replace("time", "time since the last observation"), y=error, title=title)
    axis.legend(fontsize=8, frameon=False)
    return figure


def draw_gain_sparseness(groups: Mapping[int, Float[np.ndarray, " n"]], *, features: int, title: str = "") -> "Figure":
    """Draw the distribution of the norm of the gain for each number of missing features.

    The width is the density, the bar the interquartile range, the dot the median.

    Args:
        groups: the gains by the number of missing features.
        features: the number of features.
        title: the title of the figure.
    """
    degrees = [degree for degree in sorted(groups) if len(groups[degree]) > 1]
    if not degrees:
        raise ValueError(
            "the figure 'gain-sparseness' needs two gains at one number of missing features. Use more series."
        )
    figure = make_figure(6.4, 3.8)
    axis = figure.subplots()
    drawn = axis.violinplot([groups[degree] for degree in degrees], degrees, widths=0.85, showextrema=False)
    for body in drawn["bodies"]:  # type: ignore[attr-defined]
        body.set(facecolor=SKY, alpha=0.55, edgecolor="none")
    for degree in degrees:
        low, middle, high = _quartiles(groups[degree])
        axis.plot([degree, degree], [low, high], color=BLUE, linewidth=3, solid_capstyle="butt")
        axis.plot(degree, middle, "o", color="white", markeredgecolor=INK, markersize=5)
    axis.set_xticks(degrees, [f"{degree}\nn = {len(groups[degree]):,}" for degree in degrees])
    axis.set_ylim(0, None)
    style_axes(
        axis, x=f"missing at the time point [of {features} features]", y="norm of the Kalman gain [–]", title=title
    )
    return figure


def _quartiles(values: Float[np.ndarray, " n"]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


SIZES = (10, 20, 40, 80, 160)  # state sizes M of the measured layers
_LAYERS = {"cru": "CRU", "f-cru": "FastCRU", "paired": "PairedCRU"}


def measure_runtime(
    sizes: Sequence[int] = SIZES, *, batch: int = 20, steps: int = 20, repeats: int = 5
) -> dict[str, dict[int, float]]:
    """Measure the CPU seconds of a forward and backward pass of each layer for each state size M.

    The measurement uses one thread. Gaps have mean 1. The transitions of the CRU have ‖A‖ of about 1.2, because A of a
    new layer is 0, and its exponential would have no cost.

    Args:
        sizes: the state sizes M.
        batch: the number of series.
        steps: the number of time points.
        repeats: the number of measurements, of which the fastest counts.

    >>> from cru.reporting.figures.comparisons import measure_runtime
    >>> measure_runtime([4], batch=2, steps=3, repeats=1)["cru"].keys()
    dict_keys([4])
    """
    import torch

    from cru import layers
    from cru.reporting.timing import best

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured: dict[str, dict[int, float]] = {name: {} for name in _LAYERS}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for size in sizes:
                x = torch.randn(batch, steps, size // 2)
                times = torch.empty(batch, steps, dtype=torch.float64).exponential_().clamp(max=2.5).cumsum(1)
                for name, kind in _LAYERS.items():
                    layer = getattr(layers, kind)(size // 2, size)
                    _randomise_transitions(layer)
                    _step(layer, x, times)  # the filter is compiled on first use
                    measured[name][size] = best(partial(_step, layer, x, times), repeats)
    finally:
        torch.set_num_threads(threads)
    return measured


def _randomise_transitions(layer: "Module") -> None:
    """Set the transitions to random values, as large as those after a training."""
    import torch

    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name == "basis.values":
                weights = torch.randn(50, len(parameter)).softmax(-1)
                parameter.normal_()
                basis = layer.basis()  # type: ignore[operator]
                norms = torch.linalg.matrix_norm(torch.einsum("nk,kij->nij", weights, basis), 2)
                parameter.mul_(1.2 / norms.mean())
            elif name in ("eigenvalues", "raw_eigenvectors"):
                parameter.normal_(0, 0.3)


def _step(layer: "Module", x: "Tensor", times: "Tensor") -> None:
    layer(x, times)[0].sum().backward()


def draw_runtime(measured: Mapping[str, Mapping[int, float]], *, title: str = "") -> "Figure":
    """Draw milliseconds by the state size M for each layer, on logarithmic axes."""
    figure = make_figure(5.6, 3.8)
    axis = figure.subplots()
    for name, seconds in measured.items():
        milliseconds = [1e3 * value for value in seconds.values()]
        axis.plot(
            list(seconds), milliseconds, marker="o", markersize=4, label=model_style(name).name, **line_style(name)
        )
    sizes = sorted({size for seconds in measured.values() for size in seconds})
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axis.set_xticks([], minor=True)
    style_axes(axis, x="latent state size M [dimensions]", y="forward and backward pass [ms of CPU time]", title=title)
    axis.legend(fontsize=8, frameon=False)
    return figure
