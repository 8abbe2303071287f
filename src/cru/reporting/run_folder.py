"""The folder of a run, opened again: its settings, its learning curve, its scores, and the model on its test series."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cru.data import SeriesSet
from cru.errors import shorten
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
    log: list[dict[str, Any]]  # one record an epoch
    record: dict[str, Any] | None  # the entry of the ledger, once it is finished

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.settings.model.name

    @property
    def title(self) -> str:
        """What is run, in a line."""
        return f"{self.settings.preset or 'own'}, {self.model}, seed {self.settings.seed}"

    @property
    def data_key(self) -> str:
        """The same for runs whose data are the same."""
        return data_key(self.settings.as_dict())

    @property
    def experiment(self) -> str:
        """The same for runs that may be set beside each other: the preset, or else the data but for their seed."""
        return self.settings.preset or data_key(self.settings.as_dict(), any_seed=True)

    def check(self, test: SeriesSet) -> None:
        """Refuse test series that are not those of the run, which may have been given series of its own."""
        if self.record is None:
            return
        expected = self.record["series"]["test"], tuple(self.record.get("features", {}).get("names", test.names))
        if expected != (len(test), test.names) or "splits" in self.record["changed"]:
            raise ValueError(
                f"{self.path} was trained on series of its own, which are not kept with it: {expected[0]} test series "
                f"of {', '.join(expected[1])}; its settings name {len(test)} of {', '.join(test.names)}."
            )

    def target_names(self, test: SeriesSet) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names and units of what is predicted at each time."""
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
    """Open one run."""
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
        raise ValueError(f"the run in {path} cannot be read: {error}") from None
    try:
        return RunFolder(path, RunSettings.from_dict(tables), log, record)
    except ValueError as error:
        raise ValueError(shorten(f"{settings}: {error}")) from None


def find_folders(paths: Iterable[Path]) -> list[RunFolder]:
    """All runs in and below the given folders, in the order of their paths."""
    found: dict[Path, RunFolder] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}.")
        for file in files_below(path, "settings.json"):
            if _is_run(file):
                found.setdefault(file.parent.resolve(), read_folder(file.parent))
    return list(found.values())


def files_below(path: Path, name: str) -> list[Path]:
    """All files of that name in and below a folder, in the order of their paths; hidden folders are left alone."""
    found = []
    for place, folders, files in os.walk(path):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found += [Path(place) / name] if name in files else []
    return sorted(found)


def data_key(settings: Mapping[str, Any], *, any_seed: bool = False) -> str:
    """Everything that decides the data of a run, as a text; with ``any_seed`` without the seed of the data."""
    return json.dumps(settings["data"] | ({"seed": None} if any_seed else {}), sort_keys=True)


def _is_run(file: Path) -> bool:
    """Whether a settings.json is of a run: other programs have files of that name, too."""
    try:
        tables = read_json(file)
    except (ValueError, OSError):  # damaged, which is for `read_folder` to say, or none of ours
        return any(file.with_name(name).is_file() for name in ("log.jsonl", "result.json", "best.safetensors"))
    return all(isinstance(tables.get(name), dict) for name in ("model", "data"))


class RunPredictions(NamedTuple):
    """A run on test series of its own."""

    folder: RunFolder
    test: SeriesSet
    outputs: list[SeriesPrediction]

    @property
    def scored(self) -> str:
        """Which targets count: "all" or "hidden"."""
        return self.test.task.scored if self.test.task else "all"

    @property
    def scale(self) -> tuple[float, ...]:
        """What makes the errors of features of different units comparable: empty where nothing has to."""
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
    """Each run with the first ``count`` of its test series and what the best epoch of its model says of them.

    Runs that share their data and come one after another read it once.
    """
    key, test = "", None
    for folder in folders:
        if test is None or folder.data_key != key:
            key, test = folder.data_key, load_test(folder, data_dir=data_dir)
        yield predict_run(folder, test, count=count, allow_code=allow_code)


def load_test(folder: RunFolder, *, data_dir: Path | str | None = None) -> SeriesSet:
    """The test series that the settings of a run name."""
    return load_splits(folder.settings, data_dir=data_dir).test


def predict_run(
    folder: RunFolder, test: SeriesSet, *, count: int | None = None, allow_code: bool = False
) -> RunPredictions:
    """A run on the first ``count`` of its test series, which must be its own."""
    folder.check(test)
    part = test.first(count)
    return RunPredictions(folder, part, list(predict_series(load_model(folder.path, allow_code=allow_code), part)))
