"""Filter a noisy, irregular signal with each layer: train for a few seconds, print the errors, save a picture.

Readings come at random times, a third is missing, and the noise comes and goes. Every layer gives the signal with its
uncertainty at each time, seen or not. `python examples/layers.py`
"""

import math
import os
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import cru

LAYERS = {
    "CRU": lambda: cru.CRU(2, 16, num_basis=4),
    "f-CRU": lambda: cru.FastCRU(2, 16, num_basis=4),
    "RKN-Δt": lambda: cru.RKN(2, 16, num_basis=4, time_aware=True),
}
OUT = Path(os.environ.get("CRU_DEMO_DIR", "build/demo"))


def signals(count: int, steps: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Times, readings (value and its noise level; NaN = missing), the clean signal, and the noise level."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    times = torch.empty(count, steps).exponential_(5.0, generator=generator).cumsum(1)
    period, phase = uniform(2, 5, count, 1), uniform(0, 2 * math.pi, count, 1)
    clean = torch.sin(2 * math.pi * times / period + phase)
    level = 0.05 + 0.6 * torch.sin(times * uniform(0.3, 0.6, count, 1) + uniform(0, 6, count, 1)).clamp_min(0)
    readings = torch.stack([clean + level * torch.randn(count, steps, generator=generator), level], -1)
    readings[uniform(0, 1, count, steps) < 0.33] = torch.nan
    return times, readings, clean, level


class Tracker(nn.Module):
    """A layer and a linear read-out: the mean from the state's mean, the variance from its covariance."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.mean, self.variance = layer, nn.Linear(16, 1), nn.Linear(24, 1)

    def forward(self, times: Tensor, readings: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at every time."""
        mask = ~readings.isnan().any(-1)
        y, y_var = self.layer.observe(torch.nan_to_num(readings))
        belief = self.layer.filter(y, y_var, times, mask=mask).posterior
        covariance = torch.cat([belief.upper, belief.lower, belief.side], -1)
        return self.mean(belief.mean)[..., 0], F.softplus(self.variance(covariance))[..., 0] + 1e-4


def main() -> None:
    """Train, score, draw."""
    console, table = Console(), Table("layer", "RMSE, readings seen", "RMSE, readings missing", "inside the 90 % band")
    times, readings, clean, _ = signals(256, 60, seed=0)
    test_times, test_readings, test_clean, test_level = signals(64, 60, seed=1)
    seen = ~test_readings.isnan().any(-1)
    results = {}
    for name, build in LAYERS.items():
        torch.manual_seed(0)
        model = Tracker(build())
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in track(range(int(os.environ.get("CRU_DEMO_STEPS", "150"))), description=f"training {name:7}"):
            optimiser.zero_grad()
            F.gaussian_nll_loss(*_pair(model(times, readings), clean)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        with torch.no_grad():
            mean, variance = results[name] = model(test_times, test_readings)
        error = (mean - test_clean) ** 2
        inside = (error < (1.645**2) * variance).float().mean()
        table.add_row(name, f"{error[seen].mean().sqrt():.3f}", f"{error[~seen].mean().sqrt():.3f}", f"{inside:.0%}")
    raw = (test_readings[..., 0] - test_clean)[seen].square().mean().sqrt()
    table.add_row("the readings themselves", f"{raw:.3f}", "-", "-")
    console.print(table)
    console.print(f"picture: {draw(test_times[0], test_readings[0], test_clean[0], test_level[0], results)}")


def _pair(prediction: tuple[Tensor, Tensor], target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return prediction[0], target, prediction[1]


def draw(
    times: Tensor, readings: Tensor, clean: Tensor, level: Tensor, results: dict[str, tuple[Tensor, Tensor]]
) -> Path:
    """One panel a layer: truth, readings with their noise, mean and 90 % band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(results), 1, figsize=(9, 2.3 * len(results)), sharex=True, sharey=True)
    for axis, (name, (mean, variance)) in zip(axes, results.items(), strict=True):
        mean, width = mean[0], 1.645 * variance[0].sqrt()
        axis.fill_between(times, mean - width, mean + width, color="#56B4E9", alpha=0.35, lw=0, label="90 % band")
        axis.plot(times, mean, color="#0072B2", lw=1.6, label="mean")
        axis.plot(times, clean, color="black", lw=1, ls="--", label="truth")
        axis.errorbar(
            times,
            readings[:, 0],
            yerr=level,
            fmt="o",
            ms=3.5,
            color="#D55E00",
            elinewidth=0.7,
            alpha=0.8,
            label="readings",
        )
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_ylabel("signal")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(ncols=4, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    axes[-1].set_xlabel("time")
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "layers.png"
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return path


if __name__ == "__main__":
    main()
