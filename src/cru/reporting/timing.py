"""The seconds of an epoch, measured separately from the runs, whose machine may be busy."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cru.data import Splits
from cru.data.series import Batches
from cru.files import write_atomically
from cru.models.registry import NAIVE
from cru.schema import read_json
from cru.training.callbacks import Callback
from cru.training.experiment import load_splits, make_model
from cru.training.loop import Engine, Loop
from cru.training.presets import models_of, settings_for
from cru.training.settings import RunSettings


def best(work: Callable[[], Any], repeats: int = 7, enough: float = 20.0) -> float:
    """Measure the CPU seconds of the fastest of several calls.

    Args:
        work: the function to call.
        repeats: the largest number of calls.
        enough: the seconds after which no call follows, except the second one.
    """
    times: list[float] = []
    while len(times) < min(repeats, 2) or (len(times) < repeats and sum(times) < enough):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


EPOCHS = 3
"""Number of measured epochs. The fastest counts, because the first one compiles the filter."""


class Stopwatch(Callback):
    """A callback that measures the time of each epoch without its validation."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.seconds = now, list[float]()

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Start the clock."""
        self.start = self.now()

    def on_step(self, number: int, loss: float) -> None:
        """Store the time so far, because this batch can be the last one."""
        self.spent = self.now() - self.start

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Store the time until the last batch, and restart the clock."""
        self.seconds.append(self.spent)
        self.start = self.now()


def measure_epoch(settings: RunSettings, splits: Splits, *, epochs: int = EPOCHS) -> float:
    """Measure the seconds of a training epoch with one thread: the fastest of ``epochs``.

    On a CPU this is CPU time, which other processes affect least.

    Args:
        settings: the settings of the run.
        splits: the series.
        epochs: the number of epochs.
    """
    settings = replace(settings, training=replace(settings.training, epochs=epochs, patience=None, minutes=None))
    engine, threads = Engine(), torch.get_num_threads()
    watch = Stopwatch(time.process_time if engine.device.type == "cpu" else time.perf_counter)
    model = make_model(settings, splits.train)
    torch.set_num_threads(1)
    try:
        model.prepare(Batches(splits.train, settings.training.batch_size, model.dtype, engine.device))
        parts = splits.train, splits.validation.first(1)  # one series, so that validation takes no time
        Loop(settings.training, model, *parts, seed=settings.seed, engine=engine, callback=watch).run()
    finally:
        torch.set_num_threads(threads)
    return min(watch.seconds)


def measure_presets(
    presets: Iterable[str],
    models: Sequence[str] = (),
    *,
    epochs: int = EPOCHS,
    data_dir: Path | str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[str, dict[str, float]]]:
    """Measure the seconds of an epoch of every trained model of each preset.

    Args:
        presets: the presets.
        models: the models. Empty: all models of a preset.
        epochs: the number of measured epochs.
        data_dir: the folder of the raw files.
        say: the function to call with progress messages.

    Yields:
        A preset, and the seconds of each model.
    """
    for preset in presets:
        seconds: dict[str, float] = {}
        data = None
        for model in [name for name in models or models_of(preset) if name not in NAIVE]:
            settings = settings_for(preset, model)
            if settings.data != data:
                data, splits = settings.data, load_splits(settings, data_dir=data_dir)
            seconds[model] = round(measure_epoch(settings, splits, epochs=epochs), 3)
            say(f"{preset} {model}: {seconds[model]:.2f} s per epoch")
        yield preset, seconds


def add_seconds(path: Path, preset: str, seconds: dict[str, float]) -> None:
    """Write the seconds of each model of a preset to a file, and replace earlier ones."""
    known = read_json(path) if path.is_file() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(known | {preset: seconds}, indent=1) + "\n").encode())


def read_seconds(path: Path) -> dict[tuple[str, str], float]:
    """Read the seconds of an epoch by preset and model. Return nothing if there is no file."""
    found = read_json(path) if path.is_file() else {}
    try:
        return {(preset, model): float(value) for preset, models in found.items() for model, value in models.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{path} must hold seconds by preset and model. Remove it, and measure them again.") from None
