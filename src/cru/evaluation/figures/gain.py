"""The Kalman gain on partly observed time points (the paper's study on USHCN)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxtyping import Float
from numpy import ndarray

from cru.evaluation.figures.palette import BLUE, INK, SKY
from cru.evaluation.figures.style import make_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_gain_sparseness(groups: Mapping[int, Float[ndarray, " n"]], *, features: int, title: str = "") -> "Figure":
    """The distribution of the norm of the gain for each number of missing features: less is seen, less is trusted.

    The width is the density, the bar the middle half, the dot the median.
    """
    degrees = [degree for degree in sorted(groups) if len(groups[degree]) > 1]
    if not degrees:
        raise ValueError(
            "the figure 'gain-sparseness' needs two gains at one number of missing features: look at more series."
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
    plain(axis, x=f"missing at the time point [of {features} features]", y="norm of the Kalman gain [–]", title=title)
    return figure


def _quartiles(values: Float[ndarray, " n"]) -> tuple[float, float, float]:
    import numpy as np

    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)
