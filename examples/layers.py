"""Fill in the days that a weather station missed, with each layer: train for seconds, print the errors, save a figure.

    python examples/layers.py [--small] [--out build/demo]

Each series is 60 days of a station of the sample table. The layers get both temperatures on two of three days, and the
real gaps stay. They predict the highest temperature of every day, from the days before it.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import cru
from cru.progress import track
from cru.reporting.figures.style import BLUE, INK, RED, SKY, make_figure, save, style_axes

LAYERS = {
    "CRU": lambda: cru.CRU(2, 16, num_basis=4),
    "f-CRU": lambda: cru.FastCRU(2, 16, num_basis=4),
    "RKN-Δt": lambda: cru.RKN(2, 16, num_basis=4, time_aware=True),
    "paired CRU": lambda: cru.PairedCRU(2, 16),
}
DAYS = 60  # of a series
HIDDEN = 1 / 3  # share of the days that the layers do not get
BATCH, STEPS, RATE = 64, 200, 1e-2
FLOOR = 1e-4  # smallest variance
Z90 = 1.645  # standard deviations on each side of a 90 % interval


class Windows(NamedTuple):
    """Series in standard deviations: what the layers get, and the highest temperature. NaN: missing."""

    inputs: Tensor  # (series, day, 2)
    target: Tensor  # (series, day)

    def pick(self, chosen: Tensor) -> "Windows":
        """Return some of the series."""
        return Windows(self.inputs[chosen], self.target[chosen])


def read_windows() -> tuple[Windows, Windows, float]:
    """Return windows of the training stations and of the held-out stations, and one standard deviation in °C."""
    table = cru.data.sample("weather")
    wide = table.pivot(index="station", columns="date", values=["TMAX", "TMIN"])
    stations, days = len(wide), wide.shape[1] // 2
    values = torch.tensor(wide.to_numpy().reshape(stations, 2, days).transpose(0, 2, 1), dtype=torch.float32)
    train = torch.arange(stations) % 5 != 4
    center, spread = (torch.tensor(f(values[train].numpy(), axis=(0, 1))) for f in (np.nanmean, np.nanstd))
    values = ((values - center) / spread)[:, : days // DAYS * DAYS].unflatten(1, (-1, DAYS))
    hidden = torch.rand(values.shape[:-1], generator=torch.Generator().manual_seed(0)) < HIDDEN
    inputs = values.masked_fill(hidden[..., None], torch.nan)
    both = [Windows(inputs[part].flatten(0, 1), values[part].flatten(0, 1)[..., 0]) for part in (train, ~train)]
    return both[0], both[1], float(spread[0])


class Filter(nn.Module):
    """A layer and a linear read-out: the mean from the state's mean, the variance from its covariance."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.mean, self.variance = layer, nn.Linear(16, 1), nn.Linear(24, 1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance for every day."""
        mask = ~inputs.isnan().any(-1)
        y, y_var = self.layer.observe(torch.nan_to_num(inputs))
        belief = self.layer.filter(y, y_var, torch.arange(float(DAYS)), mask=mask).posterior
        covariance = torch.cat([belief.upper, belief.lower, belief.side], -1)
        return self.mean(belief.mean)[..., 0], F.softplus(self.variance(covariance))[..., 0] + FLOOR


def train(model: Filter, windows: Windows, steps: int, name: str) -> None:
    """Maximise the likelihood of the temperatures that the layer does not get."""
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in track(range(steps), f"train {name}"):
        batch = windows.pick(torch.randint(len(windows.target), (BATCH,)))
        mean, variance = model(batch.inputs)
        missed = batch.inputs[..., 0].isnan() & ~batch.target.isnan()
        optimiser.zero_grad()
        F.gaussian_nll_loss(mean[missed], batch.target[missed], variance[missed]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def last_value(inputs: Tensor) -> Tensor:
    """Return the last highest temperature of each series up to each day, or 0, which is the mean of all."""
    found = torch.zeros(inputs.shape[:2])
    for day in range(DAYS):
        before = found[:, day - 1] if day else found[:, 0]
        found[:, day] = torch.where(inputs[:, day, 0].isnan(), before, inputs[:, day, 0])
    return found


def main() -> None:
    """Train, score, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    options = parser.parse_args()
    known, test, degrees = read_windows()
    scored = test.inputs[..., 0].isnan() & ~test.target.isnan()  # days that the layers did not get
    table = Table("layer", "RMSE of missed days, °C", "inside the 90 % interval")
    results = {}
    for name, build in LAYERS.items():
        torch.manual_seed(0)
        model = Filter(build())
        train(model, known, 2 if options.small else STEPS, name)
        with torch.no_grad():
            mean, variance = results[name] = model(test.inputs)
        error = (mean - test.target)[scored].square()
        inside = (error < Z90**2 * variance[scored]).float().mean()
        table.add_row(name, f"{degrees * error.mean().sqrt():.2f}", f"{inside:.0%}")
    naive = (last_value(test.inputs) - test.target)[scored].square().mean().sqrt()
    table.add_row("last value", f"{degrees * naive:.2f}", "-")
    console = Console()
    console.print(table)
    console.print(f"Figure: {draw(test, results, options.out / 'layers.png')}", soft_wrap=True)


def draw(test: Windows, results: dict[str, tuple[Tensor, Tensor]], path: Path) -> Path:
    """Draw one series, with one panel for each layer: observations, missed days, mean and 90 % interval."""
    number = int((~test.target.isnan()).sum(1).argmax())
    days, target = torch.arange(DAYS), test.target[number]
    seen = ~test.inputs[number, :, 0].isnan()
    figure = make_figure(9, 1.9 * len(results))
    panels = figure.subplots(len(results), 1, sharex=True, sharey=True)
    for panel, (name, (mean, variance)) in zip(panels, results.items(), strict=True):
        middle, width = mean[number], Z90 * variance[number].sqrt()
        panel.fill_between(
            days, middle - width, middle + width, color=SKY, alpha=0.4, linewidth=0, label="90 % interval"
        )
        panel.plot(days, middle, color=BLUE, linewidth=1.5, label="mean")
        panel.plot(days[seen], target[seen], "o", color=RED, markersize=3.5, label="observation")
        panel.plot(days[~seen], target[~seen], "o", mfc="white", mec=INK, markersize=4, label="not given")
        style_axes(panel, title=name, y="TMAX, scaled")
    style_axes(panels[-1], x="day")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False, fontsize=8)
    return save(figure, path)


if __name__ == "__main__":
    main()
