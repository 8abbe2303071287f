"""The folder of a run: settings, learning curve, scores, and the predictions of its model."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cru.data import SeriesSet
from cru.errors import explained
from cru.evaluation.evaluate import SeriesPrediction, predict_series
from cru.reporting.ledger import read_lines
from cru.schema import check, read_json
from cru.training.experiment import load_splits
from cru.training.run import load_model, read_record
from cru.training.schemas import EpochSchema
from cru.training.settings import RunSettings

_ANGLE = ("sine of the angle", "cosine of the angle")


class RunFolder(NamedTuple):
    """A run on disk, finished or not.

    >>> folder = read_folder(Path("runs/pendulum-regression/cru-0"))  # doctest: +SKIP
    """

    path: Path
    settings: RunSettings
    log: list[dict[str, Any]]  # one record per epoch
    record: dict[str, Any] | None  # the entry of the ledger, or None if the run is not finished

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.settings.model.name

    @property
    def title(self) -> str:
        """Title of the run: preset, model and seed."""
        return f"{self.settings.preset or 'own'}, {self.model}, seed {self.settings.seed}"

    @property
    def data_key(self) -> str:
        """Grouping key for runs with the same data."""
        return data_key(self.settings.as_dict())

    @property
    def experiment(self) -> str:
        """Grouping key for comparable runs: the preset, or else the data without their seed."""
        return self.settings.preset or data_key(self.settings.as_dict(), any_seed=True)

    def check(self, test: SeriesSet) -> None:
        """Raise ValueError if the test series are not those of the run, which can have series outside its settings."""
        if self.record is None:
            return
        expected = self.record["series"]["test"], tuple(self.record.get("features", {}).get("names", test.names))
        if expected != (len(test), test.names) or "splits" in self.record["changed"]:
            raise ValueError(
                f"{self.path} was trained on its own series, which its folder does not hold: {expected[0]} test series "
                f"of {', '.join(expected[1])}. Its settings name {len(test)} of {', '.join(test.names)}."
            )

    def target_names(self, test: SeriesSet) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return names and units of the targets."""
        if self.settings.data.task != "regression":
            return test.names, test.units or ("",) * len(test.names)
        target = self.settings.data.task_options.get("target")
        labels = [target] if isinstance(target, str) else list(target or [])
        size = test.target_shape[0]
        if labels == ["sin_cos"] and size == 2:
            return _ANGLE, ("–", "–")
        names = labels if len(labels) == size else [f"{' '.join(map(str, labels))} {k + 1}" for k in range(size)]
        return tuple(map(str, names)), ("",) * size


def read_folder(path: Path) -> RunFolder:
    """Read one run.

    Raises:
        ValueError: there is no run, or a file of it is damaged.
    """
    settings, result = path / "settings.json", path / "result.json"
    if not settings.is_file():
        raise ValueError(f"there is no run in {path}: it has no settings.json.")
    try:
        tables = read_json(settings)
        record = read_record(result) if result.is_file() else None
        log = read_lines(path / "log.jsonl")
        for line in log:
            check(EpochSchema, line, path / "log.jsonl")
    except (ValueError, OSError) as error:
        raise explained(ValueError(f"the run in {path} cannot be read."), error) from None
    try:
        return RunFolder(path, RunSettings.from_dict(tables), log, record)
    except ValueError as error:
        raise explained(ValueError(f"{settings} must hold valid settings of a run."), error) from None


def find_folders(paths: Iterable[Path]) -> list[RunFolder]:
    """Find all runs in and below the given folders, in the order of their paths."""
    found: dict[Path, RunFolder] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}.")
        for file in files_below(path, "settings.json"):
            if _is_run(file):
                found.setdefault(file.parent.resolve(), read_folder(file.parent))
    return list(found.values())


def files_below(path: Path, name: str) -> list[Path]:
    """Find all files of this name in and below a folder, in the order of their paths. Skip hidden folders."""
    found = []
    for place, folders, files in os.walk(path):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found += [Path(place) / name] if name in files else []
    return sorted(found)


def data_key(settings: Mapping[str, Any], *, any_seed: bool = False) -> str:
    """Return all settings of the data as text. With ``any_seed``, leave out the seed of the data."""
    return json.dumps(settings["data"] | ({"seed": None} if any_seed else {}), sort_keys=True)


def _is_run(file: Path) -> bool:
    """Return whether a settings.json belongs to a run. Other programs also have files of this name."""
    try:
        tables = read_json(file)
    except (ValueError, OSError):  # damaged, which `read_folder` reports, or from another program
        return any(file.with_name(name).is_file() for name in ("log.jsonl", "result.json", "best.safetensors"))
    return all(isinstance(tables.get(name), dict) for name in ("model", "data"))


class RunPredictions(NamedTuple):
    """A run with predictions for its test series."""

    folder: RunFolder
    test: SeriesSet
    predictions: list[SeriesPrediction]

    @property
    def scored(self) -> str:
        """The targets that are scored: "all" or "hidden"."""
        return self.test.task.scored if self.test.task else "all"

    @property
    def scale(self) -> tuple[float, ...]:
        """Scale that makes errors of features with different units comparable, or empty if not needed."""
        return self.test.scaler.scale if self.test.scaler and self.folder.settings.data.task != "regression" else ()

    @property
    def error_unit(self) -> str:
        """The unit of an error over all features."""
        if len(self.test.target_shape) > 1:
            return "share of full brightness"
        return "model units" if self.scale else "–"


def predict_test_series(
    folders: Iterable[RunFolder],
    *,
    count: int | None = None,
    data_dir: Path | str | None = None,
    allow_code: bool = False,
) -> Iterator[RunPredictions]:
    """Predict the first ``count`` test series of each run, with the model of its best epoch.

    Consecutive runs with the same data load them once.

    Args:
        folders: the runs.
        count: the number of test series. None: all.
        data_dir: the folder of the raw files.
        allow_code: whether models outside this library may be imported.
    """
    key, test = "", None
    for folder in folders:
        if test is None or folder.data_key != key:
            key, test = folder.data_key, load_test(folder, data_dir=data_dir)
        yield predict_run(folder, test, count=count, allow_code=allow_code)


def load_test(folder: RunFolder, *, data_dir: Path | str | None = None) -> SeriesSet:
    """Load the test series that the settings of a run name."""
    return load_splits(folder.settings, data_dir=data_dir).test


def predict_run(
    folder: RunFolder, test: SeriesSet, *, count: int | None = None, allow_code: bool = False
) -> RunPredictions:
    """Predict the first test series of a run.

    Args:
        folder: the run.
        test: the test series.
        count: the number of test series to predict. None: all.
        allow_code: whether a model outside this library may be imported.

    Raises:
        ValueError: the test series are not those of the run.
    """
    folder.check(test)
    part = test.first(count)
    return RunPredictions(folder, part, list(predict_series(load_model(folder.path, allow_code=allow_code), part)))
