"""A shortened pendulum regression: the angle of a swinging pendulum from noisy images at irregular times.

The CRU beside a GRU that sees the gaps: progress bars, a table of test errors, and two pictures: the angle with its
uncertainty, and the Kalman gain against the noise. `make demo`
"""

import os
import shutil
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table
from torch import Tensor

import cru
from cru.data import Batch, Splits
from cru.data.datasets import pendulum
from cru.evaluation import predict
from cru.evaluation.evaluate import gain_norm
from cru.models import Prediction
from cru.training import load_model, run, settings_for
from cru.training.callbacks import make_progress_callback

OUT = Path(os.environ.get("CRU_DEMO_DIR", "build/demo"))
SIZES = tuple(int(size) for size in os.environ.get("CRU_DEMO_SIZES", "200,50,100").split(","))
EPOCHS = int(os.environ.get("CRU_DEMO_EPOCHS", "30"))
MODELS = {"cru": "CRU", "gru-dt": "GRU-Δt"}
INK, BLUE, LIGHT, ORANGE, GREY = "#222222", "#0072B2", "#56B4E9", "#D55E00", "#8A8A8A"


def main() -> None:
    """Simulate, train, score, draw."""
    torch.set_num_threads(1)  # batches are small: a second thread would mostly wait
    console = Console(highlight=False)
    splits = sequences()
    about = f"{len(splits.train)} training sequences of 50 noisy images, {EPOCHS} epochs; the paper has 2 000 and 100."
    console.print(about, soft_wrap=True)
    table = Table("model", "test MSE", "test NLL", "inside the 90 % band", "parameters", "s / epoch")
    for model, title in MODELS.items():
        changes = [f"training.epochs={EPOCHS}", "training.batch_size=10", "training.learning_rate=0.005"]
        changes.append("training.schedule=cosine")
        settings = settings_for("pendulum-regression", model, changes=changes)
        shutil.rmtree(OUT / model, ignore_errors=True)
        record = run(settings, OUT / model, splits=splits, callback=make_progress_callback(console, f"{title:7}"))
        test = record["scores"]["best"]["test"]["all"]
        shown = (f"{test['mse']:.4f}", f"{test['nll']:.2f}", f"{test['coverage90']:.0%}")
        table.add_row(title, *shown, f"{record['parameters']:,}", f"{record['seconds_per_epoch']:.1f}")
    console.print(table)
    results = {model: predict_test_set(model, splits) for model in MODELS}
    for path in (draw_angles(results), draw_gain(*results["cru"])):
        console.print(f"picture: {path}", soft_wrap=True)


def sequences() -> Splits:
    """As many as are needed, instead of the paper's 4 000."""
    series = pendulum.generate(pendulum.REGRESSION, sum(SIZES))
    bounds = [0, SIZES[0], SIZES[0] + SIZES[1], sum(SIZES)]
    parts = [series.take(range(start, end)) for start, end in pairwise(bounds)]
    return Splits(*(cru.data.regression(part, target="sin_cos") for part in parts))


def predict_test_set(model: str, splits: Splits) -> tuple[Batch, Prediction]:
    """The whole test set and what the trained model says of it, with its inner states."""
    trained = load_model(OUT / model)
    return next(predict(trained, splits.test, batch_size=len(splits.test), intermediates=True))


def draw_angles(results: dict[str, tuple[Batch, Prediction]]) -> Path:
    """One panel a model: the sine of the angle, its prediction with a 90 % band, and how noisy the images are."""
    plt = _pyplot()
    number = _telling_series(next(iter(results.values()))[0])
    figure, axes = plt.subplots(
        len(results) + 1, 1, figsize=(9, 6.2), sharex=True, height_ratios=[*(3 for _ in results), 1]
    )
    for axis, (model, (batch, prediction)) in zip(axes, results.items(), strict=False):
        times, mean = batch.times[number], prediction.mean[number, :, 0]
        assert prediction.var is not None
        width = 1.645 * prediction.var[number, :, 0].sqrt()
        axis.fill_between(times, mean - width, mean + width, color=LIGHT, alpha=0.4, lw=0, label="90 % band")
        axis.plot(times, mean, color=BLUE, lw=1.6, label="prediction")
        axis.plot(times, batch.targets[number, :, 0], color=INK, lw=1, ls="--", label="truth")
        axis.set_title(MODELS[model], loc="left", fontsize=10)
        axis.set_ylabel("sin(angle)")
        axis.set_ylim(-1.6, 1.6)
        _plain(axis)
    axes[0].legend(ncols=3, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    batch = next(iter(results.values()))[0]
    axes[-1].fill_between(
        batch.times[number], 1 - batch.extras["noise"][number], color=ORANGE, alpha=0.6, lw=0, step="mid"
    )
    axes[-1].set(ylabel="noise", ylim=(0, 1), xlabel="frame", xlim=(0, 99))
    _plain(axes[-1])
    return _save(figure, "angle.png")


def draw_gain(batch: Batch, prediction: Prediction) -> Path:
    """The norm of the Kalman gain along one sequence, above the noise of its images, and over the whole test set."""
    plt = _pyplot()
    number, noise = _telling_series(batch), 1 - batch.extras["noise"]
    gain = gain_norm(prediction)
    assert gain is not None
    figure, (along, over) = plt.subplots(1, 2, figsize=(9.6, 3.4), width_ratios=[1.7, 1], layout="constrained")
    figure.set_layout_engine("constrained", wspace=0.12)
    times = batch.times[number]
    along.fill_between(times, noise[number], color=ORANGE, alpha=0.35, lw=0, step="mid")
    along.set(ylabel="noise of the image", ylim=(0, 1), xlabel="frame", xlim=(0, 99))
    along.yaxis.label.set_color(ORANGE)
    right = along.twinx()
    right.plot(times, gain[number], color=BLUE, lw=1.6, marker="o", ms=3)
    right.set_ylabel("norm of the Kalman gain", color=BLUE)
    right.set_ylim(0, None)
    along.set_title("one sequence", loc="left", fontsize=10)
    along.spines["top"].set_visible(False)
    right.spines["top"].set_visible(False)
    later = slice(5, None)  # the first frames are clean, and their gain comes from the vague start
    level, norms = noise[:, later].flatten(), gain[:, later].flatten()
    middles, groups = _grouped(level, norms, bins=8)
    over.boxplot(
        groups,
        positions=middles,
        widths=0.08,
        showfliers=False,
        medianprops={"color": BLUE, "lw": 2},
        manage_ticks=False,
    )
    over.set(xlabel="noise of the image", ylabel="norm of the Kalman gain", xlim=(0, 1))
    over.set_title("all test sequences", loc="left", fontsize=10)
    _plain(over)
    return _save(figure, "gain.png")


def _telling_series(batch: Batch) -> int:
    """The sequence whose noise changes most from one end of the scale to the other."""
    return int(batch.extras["noise"].std(1).argmax())


def _grouped(level: Tensor, norms: Tensor, bins: int) -> tuple[list[float], list[Tensor]]:
    edges = torch.linspace(0, 1, bins + 1)
    place = torch.bucketize(level, edges[1:-1])
    filled = [number for number in range(bins) if bool((place == number).any())]
    return [float(edges[n] + edges[n + 1]) / 2 for n in filled], [norms[place == n] for n in filled]


def _plain(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=GREY, labelcolor=INK)


def _pyplot():  # type: ignore[no-untyped-def]
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def _save(figure, name: str) -> Path:  # type: ignore[no-untyped-def]
    from matplotlib import pyplot as plt

    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / name, dpi=140, bbox_inches="tight")
    plt.close(figure)
    return OUT / name


if __name__ == "__main__":
    main()
