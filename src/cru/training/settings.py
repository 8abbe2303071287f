"""The settings of a run: frozen, complete, and readable as TOML or JSON at the boundary."""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from cru.errors import InputError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which series, and what is to be predicted of them."""

    dataset: str  # of `cru.data.DATASETS`
    task: str  # of `cru.data.TASKS`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the dataset's own `load`
    task_options: Mapping[str, Any] = field(default_factory=dict)  # of the task
    sparseness: float | None = None  # probability of each degree in the partial-observability study
    time_scale: float | None = None  # the Kalman family multiplies gaps with it; None: the dataset's own
    seed: int | None = None  # of simulation, split and hiding; None becomes the seed of the run
    train: int | None = None  # the first so many series of each part, for a quick try
    validation: int | None = None
    test: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("train", 1), ("validation", 1), ("test", 1), ("seed", 0)):
            _at_least(name, getattr(self, name), least)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model, and the options of its config."""

    name: str  # of `cru.models.MODELS`, or module:Class
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How it learns."""

    epochs: int = 100
    batch_size: int = 50  # over all processes together
    optimizer: Literal["adam", "adamw", "adamax"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "exponential", "cosine", "step"] = "constant"
    decay: float = 0.999  # of the exponential schedule, each step; of "step", once
    decay_epoch: int = 20  # the epochs of "step" before its decay
    floor: float = 0.1  # the share of the learning rate at which the exponential and cosine schedules end
    warmup: int = 0  # steps from 0 up to the learning rate
    clip: float | None = None  # largest norm of the gradient
    dtype: Literal["float32", "float64"] = "float32"
    monitor: Literal["mse", "mae", "nll", "crps"] = "mse"  # which validation score chooses the best epoch
    keep: Literal["best", "last"] = "best"  # which epoch's weights the run keeps and scores
    patience: int | None = None  # epochs without a better one before it stops early
    minutes: float | None = None  # of training before it stops, after the epoch under way
    max_skipped: int = 5  # steps in a row with a non-finite loss or gradient before it gives up

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
    """Everything that decides the numbers of a run, together with the raw data.

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
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "RunSettings":
        """Check names, types and ranges; every error names the key."""
        return build(cls, tables)

    @property
    def hash(self) -> str:
        """SHA-256 of what differs from the defaults: a new setting leaves the hashes of old runs as they are."""
        kept = _without_defaults(self)
        if self.data.seed == self.seed:
            del kept["data"]["seed"]
        canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


T = TypeVar("T")


def build(kind: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """A settings dataclass from nested tables. An unknown key gets the closest match."""
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise ValueError(f"there is no setting `{where}{key}`; {did_you_mean(key, hints)}")
    needed = [f.name for f in dataclasses.fields(kind) if _default(f) is dataclasses.MISSING]  # type: ignore[arg-type]
    missing = [name for name in needed if name not in table]
    if missing:
        raise InputError(f"{where}{missing[0]}", "be given")
    values = {key: checked(hints[key], value, f"{where}{key}") for key, value in table.items()}
    try:
        return kind(**values)
    except InputError as error:
        raise error.replace(argument=where + error.argument) from None


def differences(ours: RunSettings, theirs: RunSettings) -> list[str]:
    """The keys in which two settings differ: ["training.epochs"]."""
    a, b = _flat(ours.as_dict()), _flat(theirs.as_dict())
    return [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]


def checked(hint: Any, value: Any, where: str) -> Any:
    """``value``, if it is of the kind that the annotation ``hint`` names."""
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
    raise InputError(where, f"be {_wanted(options)}", repr(value))


def _wanted(options: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): '"none"'}
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
