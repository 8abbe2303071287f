"""Learning curves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cru.evaluation.figures.palette import look
from cru.evaluation.figures.style import line, make_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Learning(NamedTuple):
    """The validation score of a run after each epoch."""

    epochs: list[int]
    scores: list[float]


def draw_curves(runs: Mapping[str, Sequence[Learning]], *, metric: str = "mse", title: str = "") -> "Figure":
    """The validation score against the epoch: all runs of a model in its colour, a dot on the best epoch of each."""
    figure = make_figure(7.0, 4.0)
    axis = figure.subplots()
    lowest = float("inf")
    for model, curves in runs.items():
        for number, curve in enumerate(curves):
            axis.plot(curve.epochs, curve.scores, label=look(model).name if number == 0 else None, **line(model))
            at = min(range(len(curve.scores)), key=curve.scores.__getitem__)
            axis.plot(curve.epochs[at], curve.scores[at], "o", color=look(model).light, markersize=4)
            lowest = min(lowest, *curve.scores)
    if lowest > 0:
        axis.set_yscale("log")
    unit = "nats a time point" if metric == "nll" else "model units²" if metric == "mse" else "model units"
    plain(axis, x="training [epochs]", y=f"validation {metric.upper()} [{unit}]", title=title)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure
