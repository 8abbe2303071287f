"""The settings of a run, as frozen dataclasses. Files hold them as TOML or JSON."""

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from cru.errors import InputError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The dataset and the task."""

    dataset: str  # a name in `cru.data.DATASETS`
    task: str  # a name in `cru.data.TASKS`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the function that loads the dataset
    task_options: Mapping[str, Any] = field(default_factory=dict)  # of the task
    sparseness: float | None = None  # probability of each degree in the partial-observability study
    time_scale: float | None = None  # factor on the gaps in the Kalman family; None: that of the dataset
    seed: int | None = None  # of simulation, split and hidden targets; None: the seed of the run
    train: int | None = None  # number of training series, for a short run; None: all
    validation: int | None = None
    test: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("train", 1), ("validation", 1), ("test", 1), ("seed", 0)):
            _at_least(name, getattr(self, name), least)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model and the options of its config."""

    name: str  # a name in `cru.models.MODELS`, or module:Class
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Optimizer, schedule and stopping rules."""

    epochs: int = 100
    batch_size: int = 50  # over all processes together
    optimizer: Literal["adam", "adamw", "adamax"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "exponential", "cosine", "step"] = "constant"
    decay: float = 0.999  # factor of the exponential schedule at each step, or of "step" once
    decay_epoch: int = 20  # epoch after which "step" applies its factor
    floor: float = 0.1  # final fraction of the learning rate in the exponential and cosine schedules
    warmup: int = 0  # steps of linear warmup
    clip: float | None = None  # largest norm of the gradient
    dtype: Literal["float32", "float64"] = "float32"
    monitor: Literal["mse", "mae", "nll", "crps"] = "mse"  # validation score that determines the best epoch
    keep: Literal["best", "last"] = "best"  # epoch whose weights the run stores and scores
    patience: int | None = None  # epochs without a better score before early stopping
    minutes: float | None = None  # time limit of the training; the current epoch is finished
    max_skipped: int = 5  # consecutive steps with a non-finite loss or gradient before training fails

    def __post_init__(self) -> None:
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("warmup", 0),
            ("patience", 1),
            ("max_skipped", 1),
            ("decay_epoch", 0),
        ):
            _at_least(name, getattr(self, name), least)
        for name in ("learning_rate", "clip", "decay", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(name, "be positive and finite", value)
        for name in ("weight_decay", "floor"):
            if not getattr(self, name) >= 0:
                raise InputError(name, "not be negative", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All settings of a run. Together with the raw data they determine its results.

    >>> from cru.training import DataSettings, ModelSettings, RunSettings
    >>> data = DataSettings(dataset="ushcn", task="interpolation")
    >>> settings = RunSettings(data=data, model=ModelSettings(name="cru"))
    >>> RunSettings.from_dict(settings.as_dict()) == settings
    True
    """

    data: DataSettings
    model: ModelSettings
    training: TrainingSettings = field(default_factory=TrainingSettings)
    seed: int = 0
    preset: str | None = None  # the name of the experiment

    def __post_init__(self) -> None:
        _at_least("seed", self.seed, 0)
        if self.data.seed is None:
            object.__setattr__(self, "data", dataclasses.replace(self.data, seed=self.seed))

    def as_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "RunSettings":
        """Read the result of `as_dict`. Check names, types and ranges.

        Raises:
            ValueError: a key is unknown or its value not valid. The message names the key.
        """
        return build(cls, tables)

    @property
    def hash(self) -> str:
        """SHA-256 of the settings that differ from the defaults. A new setting does not change the hash of old runs."""
        kept = _without_defaults(self)
        if self.data.seed == self.seed:
            del kept["data"]["seed"]
        canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


T = TypeVar("T")
_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def build(kind: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Make a settings dataclass from nested tables.

    Args:
        kind: the dataclass.
        table: the settings by name.
        where: the name of the section with a dot, for errors.

    Raises:
        ValueError: a key is unknown, missing or not valid. The message suggests the closest key.
    """
    hints = _type_hints(kind)
    for key in table:
        if key not in hints:
            raise ValueError(f"there is no setting `{where}{key}`; {did_you_mean(key, hints)}")
    needed = [f.name for f in dataclasses.fields(kind) if _default(f) is dataclasses.MISSING]  # type: ignore[arg-type]
    missing = [name for name in needed if name not in table]
    if missing:
        raise InputError(f"{where}{missing[0]}", "be given")
    values = {key: checked(hints[key], value, f"{where}{key}") for key, value in table.items()}
    with named_in(where.rstrip("."), values):
        return kind(**values)


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Give the argument of an `InputError` its other name, if it is in ``names``."""
    try:
        yield
    except InputError as error:
        if error.argument not in names:
            raise
        raise error.replace(argument=names[error.argument]) from None


def named_in(section: str, names: Iterable[str]) -> AbstractContextManager[None]:
    """Add the section to the argument of an `InputError`, if the argument is one of ``names``.

    >>> from cru.errors import InputError
    >>> from cru.training.settings import named_in
    >>> with named_in("model", ["hidden_size"]):
    ...     raise InputError("hidden_size", "be even", 5)
    Traceback (most recent call last):
    cru.errors.InputError: `model.hidden_size` must be even, got 5.
    """
    return renamed({name: f"{section}.{name}" if section else name for name in names})


def differences(ours: RunSettings, theirs: RunSettings) -> list[str]:
    """Return the keys in which two settings differ, such as ["training.epochs"]."""
    a, b = _flat(ours.as_dict()), _flat(theirs.as_dict())
    return [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]


def checked(hint: Any, value: Any, where: str) -> Any:
    """Return a value that has the type of an annotation.

    Args:
        hint: the annotation.
        value: the value.
        where: the name of the setting, for errors.

    Raises:
        InputError: the value has another type.
    """
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise InputError(where, "be a table of settings", repr(value))
        return build(hint, value, f"{where}.")  # type: ignore[arg-type]
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in options:
        origin = typing.get_origin(option)
        if origin is Literal and value in typing.get_args(option):
            return value
        if option is type(None) and value in (None, "none"):  # TOML has no null
            return None
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
        if origin in (list, tuple, Sequence) and isinstance(value, list | tuple):
            return value
        if origin is Mapping and isinstance(value, Mapping):
            return {key: None if entry == "none" else entry for key, entry in value.items()}
    raise InputError(where, f"be {_describe_types(options)}", repr(value))


def _describe_types(options: tuple[Any, ...]) -> str:
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): '"none"'}
    return " or ".join(
        ", ".join(repr(choice) for choice in typing.get_args(o))
        if typing.get_origin(o) is Literal
        else names.get(o, "a table")
        for o in options
    )


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise InputError(name, f"be at least {least}", value)


def _default(f: "dataclasses.Field[Any]") -> Any:
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default


def _without_defaults(settings: Any) -> dict[str, Any]:
    kept = {}
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        if dataclasses.is_dataclass(value):
            kept[f.name] = _without_defaults(value)
        elif value != _default(f):
            kept[f.name] = dict(value) if isinstance(value, Mapping) else value
    return kept


def _flat(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat
