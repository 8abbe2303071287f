"""Error against gap length: what irregular sampling costs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cru.evaluation.diagnosis import Curve
from cru.evaluation.figures.palette import look
from cru.evaluation.figures.style import line, make_figure, plain, time_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_gaps(curves: Mapping[str, Curve], *, time_unit: str, error: str = "RMSE", title: str = "") -> "Figure":
    """Error by the time since the model last saw anything, a line for each model; ``error`` labels the axis."""
    figure = make_figure(6.0, 3.6)
    axis = figure.subplots()
    for model, curve in curves.items():
        axis.plot(curve.x, curve.y, marker="o", markersize=3.5, label=look(model).name, **line(model))
    furthest = max((max(curve.x, default=0.0) for curve in curves.values()), default=0.0)
    nearest = min((min(curve.x, default=1.0) for curve in curves.values()), default=1.0)
    if nearest > 0 and furthest > 50 * nearest:
        axis.set_xscale("log")
    axis.set_ylim(0, None)
    plain(axis, x=time_label(time_unit).replace("time", "time since the last reading"), y=error, title=title)
    axis.legend(fontsize=8, frameon=False)
    return figure
