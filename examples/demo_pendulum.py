"""The second part of the demo: the angle of a swinging pendulum from noisy images at irregular times.

CRU, f-CRU and paired CRU next to a GRU that sees the gaps. All have the same data, schedule and number of steps. The
learning rate of each was chosen on the data of seeds 1 and 2. The demo shows seed 0.
"""

import multiprocessing
import shutil
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

import cru
from cru.data import Batch, Splits
from cru.data.datasets import pendulum
from cru.evaluation import predict
from cru.evaluation.evaluate import gain_norm
from cru.models import Prediction
from cru.progress import ProgressBar
from cru.reporting import ledger
from cru.reporting.figures.style import BLUE, GREY, INK, ORANGE, SKY, make_figure, save, style_axes
from cru.training import load_model, run, settings_for

PRESET, SEED = "pendulum-regression", 0
RATES = {"cru": 0.007, "f-cru": 0.01, "paired": 0.01, "gru-dt": 0.02}  # learning rates
TITLES = {"cru": "CRU", "f-cru": "f-CRU", "paired": "paired CRU", "gru-dt": "GRU-Δt"}
SHARED = ("batch_size=10", "schedule=cosine", "floor=0.01", "warmup=100", "clip=1.0", "monitor=nll")
LEDGER = Path(__file__).parents[1] / "results" / "ledger.jsonl"
Z90 = 1.645  # standard deviations on each side of a 90 % interval
CLEAN = 5  # the first images have no noise, and their gain comes from the vague start


class Size(NamedTuple):
    """How much to train on: sequences of the three sets, and epochs."""

    train: int
    validation: int
    test: int
    epochs: int


FULL, SMALL = Size(600, 100, 200, 10), Size(8, 4, 6, 1)


def show(console: Console, out: Path, *, small: bool) -> None:
    """Train, print the scores, and draw the angle and the gain."""
    size = SMALL if small else FULL
    console.print(
        f"{size.train} training sequences of 50 noisy images, {size.epochs} epochs. The paper has 2 000 and 100."
    )
    records = train_all(out / "runs", size)
    console.print(score_table(records))
    console.print(compare(records))
    for line in full_runs():
        console.print(line)
    splits = make_splits(size)
    results = {model: predict_test_set(out / "runs" / model, splits) for model in RATES}
    console.print(f"Figure: {draw_angles(results, out / 'angle.png')}")
    gain = gain_norm(results["cru"][1])
    assert gain is not None
    noise = 1 - results["cru"][0].extras["noise"]
    clear, noisy = (float(gain[:, CLEAN:][part].median()) for part in (noise[:, CLEAN:] < 0.2, noise[:, CLEAN:] > 0.8))
    console.print(f"Median norm of the Kalman gain: {clear:.2f} for images with little noise, {noisy:.2f} with much.")
    console.print(f"Figure: {draw_gain(results['cru'][0].times, noise, gain, out / 'gain.png')}")


def make_splits(size: Size) -> Splits:
    """Simulate as many sequences as are needed, instead of the paper's 4 000."""
    series = pendulum.generate(pendulum.REGRESSION, sum(size[:3]), seed=SEED)
    bounds = [0, size.train, size.train + size.validation, sum(size[:3])]
    parts = [series.take(range(start, end)) for start, end in pairwise(bounds)]
    return Splits(*(cru.data.regression(part, target="sin_cos") for part in parts))


def train_all(folder: Path, size: Size) -> dict[str, dict[str, Any]]:
    """Train all models, two at a time."""
    shutil.rmtree(folder, ignore_errors=True)
    tasks = [(model, folder / model, size) for model in RATES]
    found: dict[str, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool, ProgressBar("train", len(tasks), wait=0.0) as bar:
        bar.update(0, ", ".join(TITLES.values()))
        for model, record in pool.imap_unordered(train_one, tasks):
            found[model] = record
            bar.update(len(found), f"{len(found)} of {len(tasks)} models")
    return {model: found[model] for model in RATES}


def train_one(task: tuple[str, Path, Size]) -> tuple[str, dict[str, Any]]:
    """Train one model in a process of its own."""
    model, folder, size = task
    torch.set_num_threads(1)
    changes = [f"training.{change}" for change in (*SHARED, f"epochs={size.epochs}", f"learning_rate={RATES[model]}")]
    settings = settings_for(PRESET, model, seed=SEED, changes=changes)
    return model, run(settings, folder, splits=make_splits(size))


def score_table(records: dict[str, dict[str, Any]]) -> Table:
    """Make the table of scores on the test set."""
    table = Table(box=SIMPLE, title="Scores on the test set: squared error, likelihood, coverage of the 90 % intervals")
    for header in ("", "MSE, 1e-3", "NLL", "inside", "parameters", "s / epoch"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    scores = {model: record["scores"]["best"]["test"]["all"] for model, record in records.items()}
    best = {name: min(each[name] for each in scores.values()) for name in ("mse", "nll")}
    for model, each in scores.items():
        mse, nll = f"{1e3 * each['mse']:.2f}", f"{each['nll']:.2f}"
        mse = f"[bold]{mse}[/bold]" if each["mse"] == best["mse"] else mse
        nll = f"[bold]{nll}[/bold]" if each["nll"] == best["nll"] else nll
        record = records[model]
        seconds = f"{record['seconds_per_epoch']:.1f}"
        table.add_row(TITLES[model], mse, nll, f"{each['coverage90']:.0%}", f"{record['parameters']:,}", seconds)
    return table


def compare(records: dict[str, dict[str, Any]]) -> str:
    """Say which models have a smaller squared error or a better likelihood than the GRU-Δt."""
    scores = {model: record["scores"]["best"]["test"]["all"] for model, record in records.items()}
    return f"At this size: {_against_gru({model: (each['mse'], each['nll']) for model, each in scores.items()})}"


def _against_gru(scores: dict[str, tuple[float, float]]) -> str:
    """Compare the mean squared errors and the likelihoods with those of the GRU-Δt."""
    rival = scores["gru-dt"]
    parts = []
    for place, what in enumerate(("smaller squared error", "better likelihood")):
        better = [TITLES[model] for model, found in scores.items() if found[place] < rival[place]]
        parts.append(f"a {what} than the GRU-Δt: {', '.join(better) or 'none'}")
    return "; ".join(parts) + "."


def full_runs() -> list[str]:
    """Return the scores of the full runs in the ledger, and compare them."""
    runs = [entry for entry in ledger.read(LEDGER) if entry["preset"] == PRESET]
    runs = [entry for entry in runs if not entry["shortened"] and not entry["changed"]]
    means, parts = {}, []
    for model, title in TITLES.items():
        scores = [entry["scores"]["best"]["test"]["all"] for entry in runs if entry["model"] == model]
        if scores:
            mse, nll = (statistics.mean(each[name] for each in scores) for name in ("mse", "nll"))
            means[model] = (mse, nll)
            parts.append(f"{title} {1e3 * mse:.2f} and {nll:.2f} ({len(scores)} seed{'s' * (len(scores) > 1)})")
    if not parts:
        return []
    lines = [f"MSE (1e-3) and NLL of full runs, from results/ledger.jsonl: {'; '.join(parts)}."]
    return [*lines, f"At full length: {_against_gru(means)}"] if "gru-dt" in means else lines


def predict_test_set(folder: Path, splits: Splits) -> tuple[Batch, Prediction]:
    """Return the test set and the predictions of a trained model, with its inner states."""
    return next(predict(load_model(folder), splits.test, batch_size=len(splits.test), intermediates=True))


def draw_angles(results: dict[str, tuple[Batch, Prediction]], path: Path) -> Path:
    """Draw the sine of the angle with its prediction and interval, one panel for each model, above the noise."""
    batch = results["cru"][0]
    number = _most_varied(batch)
    figure = make_figure(9, 8)
    panels = figure.subplots(len(results) + 1, 1, sharex=True, height_ratios=[*(3 for _ in results), 1])
    for panel, (model, (_, prediction)) in zip(panels, results.items(), strict=False):
        times, mean = batch.times[number], prediction.mean[number, :, 0]
        assert prediction.var is not None
        width = Z90 * prediction.var[number, :, 0].sqrt()
        panel.fill_between(times, mean - width, mean + width, color=SKY, alpha=0.45, linewidth=0, label="90 % interval")
        panel.plot(times, mean, color=BLUE, linewidth=1.5, label="prediction")
        panel.plot(times, batch.targets[number, :, 0], color=INK, linewidth=1, linestyle="--", label="truth")
        error = (prediction.mean[number] - batch.targets[number]).square().mean()
        style_axes(panel, y="sin(angle)", title=f"{TITLES[model]}: MSE {1e3 * error:.1f}e-3 on this sequence")
        panel.set(ylim=(-1.4, 1.4), yticks=(-1, 0, 1))
    panels[-1].fill_between(times, 1 - batch.extras["noise"][number], color=ORANGE, alpha=0.6, linewidth=0, step="mid")
    panels[-1].set(ylim=(0, 1), xlim=(0, 99))
    style_axes(panels[-1], x="frame", y="noise")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return save(figure, path)


def draw_gain(times: Tensor, noise: Tensor, gain: Tensor, path: Path) -> Path:
    """Draw the norm of the Kalman gain of the CRU: along one sequence, and against the noise of all images."""
    number = int(noise.std(1).argmax())
    figure = make_figure(9.6, 3.4)
    along, over = figure.subplots(1, 2, width_ratios=[1.7, 1])
    along.fill_between(times[number], noise[number], color=ORANGE, alpha=0.35, linewidth=0, step="mid")
    along.set(ylim=(0, 1), xlim=(0, 99))
    style_axes(along, x="frame", y="noise of the image", title="one sequence")
    right = along.twinx()
    right.plot(times[number], gain[number], color=BLUE, linewidth=1.6, marker="o", markersize=3)
    right.set_ylabel("norm of the Kalman gain", color=BLUE, fontsize=9)
    right.tick_params(colors=GREY, labelcolor=BLUE, labelsize=8)
    right.set_ylim(0, None)
    right.spines["top"].set_visible(False)
    middles, groups = _by_noise(noise[:, CLEAN:].flatten(), gain[:, CLEAN:].flatten(), 8)
    line = {"color": BLUE, "linewidth": 2}
    over.boxplot(groups, positions=middles, widths=0.08, showfliers=False, medianprops=line, manage_ticks=False)
    over.set(xlim=(0, 1), ylim=(0, None))
    style_axes(over, x="noise of the image", y="norm of the Kalman gain", title="all test sequences")
    return save(figure, path)


def _most_varied(batch: Batch) -> int:
    """Return the sequence whose noise and angle vary most."""
    return int((batch.extras["noise"].std(1) * batch.targets[..., 0].std(1)).argmax())


def _by_noise(noise: Tensor, gain: Tensor, bins: int) -> tuple[list[float], list[Tensor]]:
    edges = torch.linspace(0, 1, bins + 1)
    place = torch.bucketize(noise, edges[1:-1])
    filled = [number for number in range(bins) if bool((place == number).any())]
    return [float(edges[n] + edges[n + 1]) / 2 for n in filled], [gain[place == n] for n in filled]
