"""Calibration: does the 90 % interval hold 90 %?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cru.evaluation.diagnosis import Curve
from cru.evaluation.figures.palette import GREY, look
from cru.evaluation.figures.style import line, make_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_calibration(curves: Mapping[str, Curve], *, title: str = "") -> "Figure":
    """Observed against nominal coverage, a line for each model; one on the diagonal is as sure as it may be."""
    figure = make_figure(4.6, 4.4)
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axis.text(0.97, 0.62, "too sure", color=GREY, fontsize=8, ha="right")
    axis.text(0.06, 0.36, "too wide", color=GREY, fontsize=8)
    for model, curve in curves.items():
        axis.plot(curve.x, curve.y, marker="o", markersize=3, label=look(model).name, **line(model))
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ticks = [0, 0.25, 0.5, 0.75, 1]
    labels = [f"{tick:.0%}" for tick in ticks]
    axis.set_xticks(ticks, labels)
    axis.set_yticks(ticks, labels)
    plain(
        axis,
        x="nominal coverage of the central interval [% of targets]",
        y="observed coverage [% of targets]",
        title=title,
    )
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    return figure
