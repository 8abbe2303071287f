"""Draw docs/pictures/pair.png: one pair of the paired CRU follows the season of a real weather station.

python examples/pair.py [PATH]
"""

import math
import sys
from pathlib import Path

import matplotlib
import torch

import cru

matplotlib.use("Agg")
from matplotlib import pyplot as plt

STATION = "USC00217460"  # in Minnesota, where the season is large
WEEK = 7  # days between two observations that the pair gets
SEEN = ((0.0, 1.2), (2.0, 2.4))  # years in which it gets them
SPREAD = 5.0  # standard deviation of a day around the season, °C


def make_pair() -> cru.PairedCRU:
    """Set one pair by hand: a period of one year, hardly any damping, little noise."""
    layer = cru.PairedCRU(1, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.frequency.fill_(2 * math.pi)
        layer.raw_decay.copy_(layer.decay_map.inverse(torch.tensor([0.02])))
        layer.raw_noise.copy_(layer.noise_map.inverse(torch.tensor([0.02, 0.02])))
        layer.raw_initial_variance.copy_(layer.initial_map.inverse(torch.tensor([1.0, 1.0])))
    return layer


def main(path: Path) -> None:
    """Filter and smooth the season. The pair gets one day of each week, in two parts of three years."""
    table = cru.data.sample("weather")
    table = table[table["station"] == STATION].dropna(subset=["TMAX"])
    days = (table["date"] - table["date"].min()).dt.days.to_numpy()
    years, values = torch.from_numpy(days / 365.25), torch.from_numpy(table["TMAX"].to_numpy().copy())
    shown = torch.zeros(len(days), dtype=torch.bool)
    for start, end in SEEN:
        shown |= (years >= start) & (years < end) & torch.from_numpy(days % WEEK == 0)
    middle, scale = values[shown].mean(), values[shown].std()
    y = ((values - middle) / scale)[None, :, None]
    y_var = torch.full_like(y, float((SPREAD / scale) ** 2))
    layer = make_pair()
    with torch.no_grad():
        beliefs = {
            "filter: from the observations up to each day": layer.filter(y, y_var, years, shown[None]).posterior,
            "smoother: from all observations": layer.smooth(y, y_var, years, shown[None]),
        }
    figure, axes = plt.subplots(2, 1, figsize=(8, 5), sharex=True, sharey=True)
    for axis, (title, belief) in zip(axes, beliefs.items(), strict=True):
        mean, width = middle + scale * belief.mean[0, :, 0], 1.645 * scale * belief.upper[0, :, 0].sqrt()
        axis.plot(years, values, ".", ms=2, color="#BBBBBB", label="all days")
        axis.fill_between(years, mean - width, mean + width, color="#56B4E9", alpha=0.45, lw=0, label="90 % interval")
        axis.plot(years, mean, color="#0072B2", lw=1.6, label="upper half: season")
        lower = middle + scale * belief.mean[0, :, 1]
        axis.plot(years, lower, color="#8A8A8A", lw=1, ls="--", label="lower half: a quarter turn ahead")
        axis.plot(years[shown], values[shown], "o", ms=3, color="#D55E00", label="observations of the pair")
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_ylabel("TMAX, °C")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    axes[0].legend(ncols=3, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1.08), frameon=False)
    axes[-1].set_xlabel("years")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures/pair.png"))
