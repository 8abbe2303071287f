"""The series with their task, and the model, from the settings of a run."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from cru.data import SeriesSet, Splits
from cru.data.datasets import DATASETS, Dataset, dataset
from cru.data.tasks import TASK_VERSION, TASKS, partial_observability
from cru.errors import InputError, did_you_mean
from cru.models import Model, create, spec_of
from cru.training.settings import RunSettings, checked, named_in, renamed


def load_splits(settings: RunSettings, *, data_dir: Path | str | None = None, progress: bool = False) -> Splits:
    """Load training, validation and test series of a run and apply the task. The data seed determines every draw.

    Args:
        settings: the settings of the run.
        data_dir: the folder of the raw files.
        progress: whether to show a progress bar.

    Raises:
        InputError: the dataset, the task or the value of an option is not valid. The error has the name of the setting.
        ValueError: an option is unknown.
    """
    data, seed = settings.data, settings.data.seed or 0
    if data.task not in TASKS:
        raise InputError("data.task", "be a known task", repr(data.task), did_you_mean(data.task, TASKS))
    task, entry = TASKS[data.task], _dataset(data.dataset)
    check_options(task, data.task_options, "data.task_options")
    check_options(entry.load, data.options, "data.options")
    with named_in("data.options", data.options):
        splits = entry.load(data_dir=data_dir, seed=seed, progress=progress, **data.options)
    splits = splits.first(data.train, data.validation, data.test)

    def prepared(part: SeriesSet, number: int) -> SeriesSet:
        if data.sparseness is not None:
            with renamed({"probability": "data.sparseness"}):
                part = partial_observability(part, probability=data.sparseness, seed=(seed, number))
        own = {"seed": (seed, number)} if "seed" in inspect.signature(task).parameters else {}
        with named_in("data.task_options", data.task_options):
            return task(part, **own | dict(data.task_options))

    return Splits(*(prepared(part, number) for number, part in enumerate(splits)))


def _dataset(name: str) -> Dataset:
    with renamed({"name": "data.dataset"}):
        return dataset(name)


def data_version(settings: RunSettings) -> int:
    """Return the version of the data of these settings. Runs on different versions are not comparable."""
    data = settings.data
    draws = data.sparseness is not None or bool(data.task_options.get("hidden", data.task == "interpolation"))
    loaded = DATASETS[data.dataset].version if data.dataset in DATASETS else 1  # a user's own series
    return max(loaded, TASK_VERSION if draws else 1)


def make_model(settings: RunSettings, train: SeriesSet) -> Model:
    """Make the model with the initial weights of the seed. `Model.prepare` is not yet called."""
    own = settings.data.time_scale
    scale = _dataset(settings.data.dataset).time_scale if own is None else own
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        spec, options = spec_of(train, time_scale=scale), settings.model.options
        with named_in("model", options):
            model = create(settings.model.name, spec, **options)
    return model.to(getattr(torch, settings.training.dtype))


def check_options(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """Check that every option is a keyword of a function and has its type.

    Args:
        function: the function.
        options: the options.
        where: the name of the section, for errors.

    Raises:
        ValueError: an option is unknown or has another type.
    """
    known = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in ("data_dir", "cache", "seed", "progress")
    }
    for option, value in options.items():
        if option not in known:
            raise ValueError(f"there is no setting `{where}.{option}`; {did_you_mean(option, known)}")
        checked(known[option], value, f"{where}.{option}")
