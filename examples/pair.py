"""What one pair of the paired CRU does with readings of an oscillation. Draws docs/pictures/pair.png."""

import math
import sys
from pathlib import Path

import matplotlib
import torch

import cru

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def pair() -> cru.PairedCRU:
    """One pair, by hand: a period of 4, hardly any damping, little noise."""
    layer = cru.PairedCRU(1, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.frequency.fill_(2 * math.pi / 4)
        layer.raw_decay.copy_(layer.decay_map.inverse(torch.tensor([0.02])))
        layer.raw_noise.copy_(layer.noise_map.inverse(torch.tensor([0.02, 0.02])))
        layer.raw_initial_variance.copy_(layer.initial_map.inverse(torch.tensor([1.0, 1.0])))
    return layer


def main(path: Path) -> None:
    """Readings up to time 6 and from 10 to 12; the truth is asked for everywhere from 0 to 16."""
    torch.manual_seed(1)
    layer, every = pair(), torch.linspace(0, 16, 400, dtype=torch.float64)
    seen = ((every < 6) | ((every > 10) & (every < 12))) & (torch.rand(400) < 0.08)
    seen[0] = True
    truth = torch.sin(2 * math.pi * every / 4 + 0.6)
    readings = truth + 0.25 * torch.randn(400)
    y, y_var = readings[None, :, None], torch.full((1, 400, 1), 0.25**2, dtype=torch.float64)
    mask = seen[None]
    with torch.no_grad():
        beliefs = {
            "filter: what is known at each time": layer.filter(y, y_var, every, mask).posterior,
            "smoother: what is known in the end": layer.smooth(y, y_var, every, mask),
        }
    figure, axes = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True, sharey=True)
    for axis, (title, belief) in zip(axes, beliefs.items(), strict=True):
        mean, width = belief.mean[0, :, 0], 1.645 * belief.upper[0, :, 0].sqrt()
        axis.fill_between(every, mean - width, mean + width, color="#56B4E9", alpha=0.35, lw=0, label="90 % band")
        axis.plot(every, mean, color="#0072B2", lw=1.6, label="upper half: mean")
        axis.plot(every, belief.mean[0, :, 1], color="#8A8A8A", lw=1, label="lower half: mean")
        axis.plot(every, truth, color="black", lw=0.9, ls="--", label="truth")
        axis.plot(every[seen], readings[seen], "o", ms=4, color="#D55E00", label="readings")
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_ylabel("signal")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(ncols=5, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1.1), frameon=False)
    axes[1].set_xlabel("time")
    axes[0].set_ylim(-2.6, 2.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures/pair.png"))
