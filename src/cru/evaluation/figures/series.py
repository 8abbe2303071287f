"""A series with what was seen of it, what a model says, and how sure it is."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from cru.evaluation.figures.palette import BLUE, INK, SKY
from cru.evaluation.figures.style import make_figure, plain, time_label, with_unit
from cru.evaluation.outputs import Output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDS = (0.9, 0.5)


def draw_series(
    output: Output,
    *,
    regression: bool,
    names: Sequence[str],
    units: Sequence[str] = (),
    time_unit: str = "",
    title: str = "",
    rows: int = 5,
) -> "Figure":
    """A panel for each of the features with most targets: readings and what was withheld, or the truth of a regression;
    the mean, 50 and 90 % bands."""
    if output.std is None:
        raise ValueError(
            "the figure 'series' needs Gaussian predictions of features: take the figure 'trajectory' for images."
        )
    chosen = np.sort(np.argsort(-output.target_mask.sum(0), kind="stable")[:rows])
    figure = make_figure(7.4, 1.2 + 1.35 * len(chosen))
    axes = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    for axis, k in zip(axes, chosen, strict=True):
        mean, std = output.mean[:, k], output.std[:, k]
        for level, alpha in zip(BANDS, (0.25, 0.45), strict=True):
            width = NormalDist().inv_cdf((1 + level) / 2)
            low, high = mean - width * std, mean + width * std
            axis.fill_between(output.times, low, high, color=SKY, alpha=alpha, linewidth=0, label=f"{level:.0%} band")
        axis.plot(output.times, mean, color=BLUE, linewidth=1.3, label="mean")
        known, hidden = output.target_mask[:, k], output.hidden[:, k]
        if regression:  # the readings are something else
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
            margin = 0.25 * float(np.ptp(known_values)) or 1.0  # a feature that never varies
            axis.set_ylim(float(known_values.min()) - margin, float(known_values.max()) + margin)
        plain(axis, y=with_unit(names[k], units[k] if units else ""))
        axis.yaxis.label.set_fontsize(8)
    plain(axes[-1], x=time_label(time_unit))
    plain(axes[0], title=title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure
