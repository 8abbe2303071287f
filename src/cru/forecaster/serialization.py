"""Save a fitted forecaster to a folder and load it: weights, configuration, observations and a card, without pickle."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import numpy as np
from pydantic import Field, model_validator

import cru
from cru.data import Scaler, SeriesSet
from cru.data.cache import read_series, write_series
from cru.data.tables import UNITS
from cru.files import is_part, is_temporary, open_part, part_name, write_atomically, write_folder
from cru.forecaster.calibration import APART, COUPLED, PROBABILITIES, UNMEASURED, Calibration, guarantee
from cru.forecaster.clock import Clock
from cru.forecaster.error_distribution import PROBABILITIES as ERROR_PROBABILITIES
from cru.forecaster.error_distribution import REPEAT_LEVELS, SHAPES, SITUATIONS, SMALLEST_SCALE, ErrorDistribution
from cru.forecaster.inputs import KNOWN, STATIC, Inputs
from cru.forecaster.kinds import Kind, Kinds
from cru.forecaster.table_io import Columns, check_sensible
from cru.models.loading import load_spec, restore_model
from cru.models.registry import check_loadable
from cru.schema import AnyNumber, Checksum, Count, OpenSchema, Options, Positive, Schema, check, check_array, read_json
from cru.training.checkpoint import check_writable, pack_checkpoint, parse_checkpoint

if TYPE_CHECKING:
    from cru.forecaster.estimator import Fitted, Forecaster

FORMAT = 6  # version of the format; it rises with every incompatible change
_WEIGHTS, _CONFIG, _HISTORY, _CARD = "model.safetensors", "config.json", "history.npz", "README.md"
_PARTS = {_WEIGHTS: None, _HISTORY: None}  # the only files that a configuration may name
_ROWS = ("table", "details")  # the scores that are lists of rows
_TRIES = 3  # attempts to load while another process saves

_Finite = Annotated[float, Field(ge=-1e30, le=1e30)]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Scale = Annotated[float, Field(ge=1e-300, le=1e300)]


class ClockSchema(Schema):
    """Fields of a `Clock`. A validator checks that they are consistent."""

    kind: Literal["number", "date", "datetime"]
    unit: str
    origin: str | None
    zone: str | None

    @model_validator(mode="after")
    def _fits(self) -> "ClockSchema":
        if self.kind == "number":
            if (self.unit, self.origin, self.zone) != ("", None, None):
                raise ValueError("`clock` must have no unit, origin and zone where times are numbers")
            return self
        if self.unit not in UNITS or self.origin is None:
            raise ValueError(f"`clock.unit` must be one of {', '.join(UNITS)}, with an origin")
        Clock(**self.model_dump()).check()
        return self


class ColumnsSchema(Schema):
    """Fields of `Columns`. A validator checks that the names differ."""

    id: str | None
    time: str
    values: list[str] | None
    variable: str | None
    duplicates: Literal["refuse", "mean"]
    whole_ids: bool
    polars: bool
    known: dict[str, _Finite | Literal["last"] | None]
    static: dict[str, list[str] | None]

    @model_validator(mode="after")
    def _fits(self) -> "ColumnsSchema":
        keys = [name for name in (self.id, self.time, self.variable) if name is not None]
        keys += [*self.known, *self.static]
        if len(set(keys)) != len(keys):
            raise ValueError("`columns` must name different columns for id, time, variable, known and static")
        if any(found is not None and not len(set(found)) == len(found) > 0 for found in self.static.values()):
            raise ValueError("`columns.static` must have different categories")
        Columns(id=self.id, time=self.time, variable=self.variable).check()
        return self


class InputsSchema(Schema):
    """Fields of `Inputs`, except the columns. `Config` checks their lengths."""

    center: list[_Finite]
    gap: Annotated[float, Field(ge=1e-30, le=1e30)]
    shift: list[_Finite]
    scale: list[Annotated[float, Field(ge=0, le=1e30)]]


class ScalerSchema(Schema):
    """Fields of a `Scaler`: a shift, a positive scale and an optional logarithmic scale for each variable."""

    shift: list[Annotated[float, Field(ge=-1e300, le=1e300)]]
    scale: list[_Scale]
    log_scale: list[Annotated[float, Field(ge=0, le=1e300)]]


class KindsSchema(Schema):
    """Fields of `Kinds`. A validator checks that they fit each other."""

    kinds: dict[str, Kind]
    categories: dict[str, list[str]]
    declared: list[str]

    @model_validator(mode="after")
    def _fits(self) -> "KindsSchema":
        named = [name for name, kind in self.kinds.items() if kind == "category"]
        filled = all(len(set(found)) == len(found) > 0 for found in self.categories.values())
        if not (filled and sorted(named) == sorted(self.categories) and {*self.declared} <= self.kinds.keys()):
            raise ValueError("`kinds` must have the categories of each variable of kind 'category', and of no other")
        return self


class RecalibrationSchema(Schema):
    """Fields of a `Recalibration`. `Config` checks their shapes."""

    used: list[bool]
    means: list[list[_Finite]]
    edges: list[list[_Finite]]
    lowest: list[list[Annotated[float, Field(ge=0, le=1)]]]
    quantiles: list[list[list[_Finite]]]
    logistic: list[list[Annotated[float, Field(ge=-1e3, le=1e3)]]]


class CalibrationSchema(Schema):
    """Fields of a `Calibration`. `Config` checks their shapes."""

    leads: list[Positive]
    quantiles: list[list[list[_Finite]]]
    likeness: list[list[Annotated[float, Field(ge=-1.001, le=1.001)]]]
    constant: list[bool]
    mean_weight: list[Annotated[float, Field(ge=0, le=1)]]
    recalibration: RecalibrationSchema
    cap: list[Annotated[float, Field(ge=-1e300, le=1e300)]]


class CoverageSchema(Schema):
    """A row of `scores_["coverage"]`: the share of withheld values inside an interval, in a range of lead times."""

    lead: str
    count: Count
    level: Annotated[float, Field(gt=0, lt=100)]
    coverage: Annotated[float, Field(ge=0, le=1)]


class ErrorsSchema(Schema):
    """Fields of an `ErrorDistribution`."""

    quantiles: list[list[list[_Finite]]]
    tails: list[list[list[list[_Finite]]]]
    long_gap: Annotated[float, Field(ge=1e-30, le=1e31)]
    counts: list[_Count]
    repeats: list[list[_Count]]

    def check_width(self, width: int) -> None:
        """Raise ValueError unless the fields are a distribution of the errors of ``width`` variables."""
        each = (SITUATIONS, width)
        quantiles = check_array("errors.quantiles", self.quantiles, (*each, len(ERROR_PROBABILITIES)))
        tails = check_array("errors.tails", self.tails, (*each, 2, 2))
        repeats = check_array("errors.repeats", self.repeats, (width, len(REPEAT_LEVELS)))
        scale, shape = tails[..., 0], tails[..., 1]
        if len(self.counts) != width or (np.diff(quantiles, axis=-1) < 0).any():
            raise ValueError(f"`errors` must have counts of {width} variables, and quantiles that rise")
        if (scale < SMALLEST_SCALE).any() or (shape < SHAPES[0]).any() or (shape > SHAPES[1]).any():
            raise ValueError("`errors.tails` must have positive scales, and shapes between 0 and 1")
        if (repeats == 1).any():
            raise ValueError("`errors.repeats` must be 0 or at least 2")


class Params(OpenSchema):
    """Arguments of the constructor of `Forecaster`. A subclass may have more."""

    model: str
    base: str | None
    options: Options | None
    epochs: int | None
    minutes: float | None
    patience: int | None
    batch_size: int
    learning_rate: float
    seed: int
    progress: bool
    calendar: bool


class Config(Schema):
    """Content of config.json. Every key is a field of this class."""

    format: int
    version: str
    params: Params
    model: str
    options: Options
    spec: dict[str, Any]  # see `load_spec`
    names: Annotated[list[str], Field(min_length=1)]
    kinds: KindsSchema
    gap: Annotated[float, Field(ge=1e-30, le=1e30)]
    clock: ClockSchema
    columns: ColumnsSchema
    inputs: InputsSchema | None
    scaler: ScalerSchema
    calibration: CalibrationSchema
    errors: ErrorsSchema | None
    scores: dict[str, AnyNumber]
    score_table: list[dict[str, str | AnyNumber]]
    score_details: list[dict[str, str | AnyNumber]]
    coverage: list[CoverageSchema]
    files: dict[str, Checksum]
    digest: Checksum

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        width, found = len(self.names), self.calibration
        if len(set(self.names)) != width:
            raise ValueError("`names` must differ from each other")
        lengths: tuple[list[Any], ...] = (
            self.scaler.shift,
            self.scaler.scale,
            found.constant,
            found.mean_weight,
            found.recalibration.used,
            found.cap,
        )
        if list(Kinds.from_dict(self.kinds.model_dump()).columns) != self.names:
            raise ValueError("`kinds` must be of the variables in `names`")
        if {width} != set(map(len, lengths)) or len(self.scaler.log_scale) not in (0, width):
            raise ValueError(f"`scaler` and `calibration` must be of {width} variables")
        if not {_WEIGHTS} <= self.files.keys() <= _PARTS.keys():
            raise ValueError(f"`files` must be {_WEIGHTS} and {_HISTORY}, or the first alone")
        leads = np.array(found.leads)
        shape = (len(APART) + len(leads), width, len(PROBABILITIES))
        quantiles = check_array("calibration.quantiles", found.quantiles, shape)
        if (np.diff(leads) <= 0).any() or (np.diff(quantiles, axis=-1) < 0).any():
            raise ValueError("`calibration` must have leads and quantiles that rise")
        self._check_recalibration()
        size = width if found.likeness or width <= COUPLED else 0
        likeness = check_array("calibration.likeness", found.likeness, (size, size))
        if not np.allclose(likeness, likeness.T) or not np.allclose(np.diag(likeness), 1, atol=1e-3):
            raise ValueError("`calibration.likeness` must be a matrix of correlations")
        if self.errors is not None:
            self.errors.check_width(width)
        self._check_inputs()
        return self

    @property
    def encoder(self) -> Inputs | None:
        """The encoder of known and static columns."""
        if self.inputs is None:
            return None
        return Inputs(
            known=self.columns.known, static=_tuples(self.columns.static), **_tuples(self.inputs.model_dump())
        )

    def _check_inputs(self) -> None:
        fitted, roles = self.encoder, self.columns
        if (fitted is None) == bool(roles.known or roles.static):
            raise ValueError("`inputs` must be there for known or static columns, and only for these")
        if fitted is None:
            if self.options.get("inputs") or self.options.get("later_inputs"):
                raise ValueError("`options` must not have features of known and static columns")
            return
        sizes = len(fitted.center), len(fitted.shift), len(fitted.scale)
        if sizes != (len(roles.known), fitted.expected_size, fitted.expected_size):
            raise ValueError("`inputs` must fit the known and static columns")
        if (self.options.get("inputs"), self.options.get("later_inputs")) != (fitted.size, fitted.later):
            raise ValueError("`options` must have the numbers of features of the known and static columns")

    def _check_recalibration(self) -> None:
        found, width = self.calibration.recalibration, len(self.names)
        ranges = len(found.means[0]) if found.means else 0
        means = check_array("recalibration.means", found.means, (width, max(1, ranges)))
        edges = check_array("recalibration.edges", found.edges, (width, len(PROBABILITIES)))
        lowest = check_array("recalibration.lowest", found.lowest, edges.shape)
        shape = (*means.shape, len(PROBABILITIES))
        quantiles = check_array("recalibration.quantiles", found.quantiles, shape)
        logistic = check_array("recalibration.logistic", found.logistic, (width, 2))
        rising = (means, edges, lowest, quantiles)
        if any((np.diff(each) < 0).any() for each in rising) or (logistic[:, 1] < 0).any():
            raise ValueError("`recalibration` must have means, edges, quantiles and probabilities that rise")


def save(forecaster: "Forecaster", folder: Path, *, history: bool) -> None:
    """Write a fitted forecaster to a folder.

    The configuration is written after the files that it names. So a reader finds either the old or the new model.

    Args:
        forecaster: a fitted forecaster.
        folder: a new or empty folder, or one with an older model.
        history: whether to save the observations of the training table.

    Raises:
        ValueError: the folder holds other files, or JSON cannot hold a parameter.
    """
    check_free(folder)
    model = forecaster.model_
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": cru.__version__,
        "params": forecaster._plain_params(),
        "model": forecaster.name_,
        "options": forecaster.options_,
        "spec": {key: list(v) if isinstance(v, tuple) else v for key, v in model.spec.as_dict().items()},
        "names": list(forecaster.names_),
        "kinds": forecaster.kinds_.to_dict(),
        "gap": forecaster.gap_,
        "clock": forecaster.clock_.to_dict(),
        "columns": {key: list(v) if isinstance(v, tuple) else v for key, v in _columns(forecaster).items()},
        "inputs": None if forecaster.inputs_ is None else forecaster.inputs_.to_dict(),
        "scaler": forecaster.scaler_.to_dict(),
        "calibration": forecaster.calibration_.to_dict(),
        "errors": None if forecaster.errors_ is None else forecaster.errors_.to_dict(),
        "scores": {name: value for name, value in forecaster.scores_.items() if name not in (*_ROWS, "coverage")},
        **{f"score_{name}": forecaster.scores_[name] for name in _ROWS},
        "coverage": forecaster.scores_["coverage"],
    }
    try:
        _digest(config)
    except (TypeError, ValueError) as error:  # before anything is written
        raise ValueError(f"the parameters must be such that JSON can hold them, to be saved: {error}.") from None
    kept = forecaster.history_ if history else None
    check(Config, config | {"files": {_WEIGHTS: "0" * 64}, "digest": "0" * 64}, "the model")

    def write_weights(file: BinaryIO) -> None:
        file.write(pack_checkpoint(model.state_dict(), {}))

    def write_history(file: BinaryIO) -> None:
        if kept is not None:
            write_series(file, kept, {})

    def whole(files: dict[str, str]) -> bytes:
        named = config | {"files": files}
        return (json.dumps(named | {"digest": _digest(named)}, ensure_ascii=False) + "\n").encode()

    parts = {_WEIGHTS: write_weights, _HISTORY: None if kept is None else write_history}
    write_folder(folder, _CONFIG, parts, whole)
    write_atomically(folder / _CARD, _card(forecaster, history=kept is not None).encode())


def load(folder: Path, kind: "type[Fitted]", *, allow_code: bool = False) -> "Fitted":
    """Load a forecaster from a folder of `save`.

    Args:
        folder: the folder.
        kind: `Forecaster` or a subclass.
        allow_code: allow a model outside this library, whose import runs code.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is damaged or altered, another version wrote it, or the model needs ``allow_code``.
    """
    for attempt in range(_TRIES):
        config = read_config(folder)
        try:
            return _load(folder, config, kind, allow_code=allow_code)
        except FileNotFoundError:
            if attempt == _TRIES - 1 or read_config(folder) == config:  # otherwise another process saved: try again
                raise
    raise AssertionError


def _load(folder: Path, config: Config, kind: "type[Fitted]", *, allow_code: bool) -> "Fitted":
    path = folder / _CONFIG
    check_loadable(config.model, path, allow_code=allow_code)
    params = config.params.model_dump()
    strange = params.keys() ^ kind._parameters().keys()
    if strange:
        raise ValueError(f"`params` in {path} must be those of {kind.__name__}: {sorted(strange)[0]!r:.60} differs.")
    check_loadable(config.params.model, path, allow_code=allow_code)  # a later `fit` would import it
    spec = load_spec(config.spec, path)
    if (spec.input_shape, spec.target_shape, spec.likelihood) != (2 * ((len(config.names),),) + ("gaussian",)):
        raise ValueError(f"`spec` in {path} must be that of {len(config.names)} variables.")
    weights = folder / part_name(_WEIGHTS, config.files[_WEIGHTS])
    with open_part(folder, _WEIGHTS, config.files[_WEIGHTS]) as file:
        tensors, _ = parse_checkpoint(file.read(), weights)
    forecaster = kind(**params)
    forecaster.name_, forecaster.options_ = config.model, dict(config.options)
    forecaster.model_ = restore_model(config.model, spec, config.options, tensors, folder, allow_code=allow_code)
    forecaster.scaler_ = Scaler.from_dict(config.scaler.model_dump())
    forecaster.kinds_ = Kinds.from_dict(config.kinds.model_dump())
    forecaster.calibration_ = Calibration.from_dict(config.calibration.model_dump(), forecaster.kinds_)
    errors = config.errors
    forecaster.errors_ = None if errors is None else ErrorDistribution.from_dict(errors.model_dump())
    forecaster.clock_ = Clock(**config.clock.model_dump())
    columns = config.columns.model_dump()
    values = None if columns["values"] is None else tuple(columns["values"])
    columns |= {"values": values, "categories": forecaster.kinds_.categories, "static": _tuples(columns["static"])}
    forecaster.columns_ = Columns(**columns)
    forecaster.inputs_ = config.encoder
    forecaster.names_, forecaster.gap_ = tuple(config.names), config.gap
    rows = {name: getattr(config, f"score_{name}") for name in _ROWS}
    forecaster.scores_ = {**config.scores, **rows, "coverage": [row.model_dump() for row in config.coverage]}
    forecaster.history_ = _load_history(folder, config, forecaster) if _HISTORY in config.files else None
    return forecaster


def _load_history(folder: Path, config: Config, forecaster: "Forecaster") -> SeriesSet:
    path = folder / part_name(_HISTORY, config.files[_HISTORY])
    with open_part(folder, _HISTORY, config.files[_HISTORY]) as file:
        try:
            series, _ = read_series(file)
            check_history(series, forecaster)
        except ValueError as error:
            raise ValueError(f"{path} was altered or damaged: {str(error).rstrip('.')}.") from None
    return series


def check_history(series: SeriesSet, forecaster: "Forecaster") -> None:
    """Check that saved observations fit the model: variables, ids, times and magnitudes. Raise ValueError if not."""
    clock, single = forecaster.clock_, forecaster.columns_.id is None
    if series.names != forecaster.names_ or series.is_image:
        raise ValueError("its variables are not those of the model")
    if (series.time_unit, series.origin) != (clock.unit, clock.origin):
        raise ValueError("its times are counted in another way than those of the model")
    if (single and series.ids != ("0",)) or not len(series) or not (series.lengths > 0).all():
        raise ValueError("it must hold at least one observation of each series, and one series where there are no ids")
    if forecaster.columns_.whole_ids and not all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in series.ids):
        raise ValueError("its ids must be whole numbers")
    _check_known(series, forecaster.columns_)
    check_sensible(series, forecaster.scaler_)
    clock.check_range(series.times)


def _check_known(series: SeriesSet, columns: Columns) -> None:
    """Check the known and static values of saved observations. Raise ValueError if they do not fit."""
    if not (columns.known or columns.static):
        return
    known, static = series.per_time.get(KNOWN, np.empty(0)), series.per_series.get(STATIC, np.empty(0))
    shapes = (len(series.times), len(columns.known)), (len(series), len(columns.static))
    if (known.shape, static.shape) != shapes or {known.dtype, static.dtype} != {np.dtype(np.float64)}:
        raise ValueError("its known and static values must be those of the columns")
    if np.isinf(known).any() or np.isinf(static).any():
        raise ValueError("its known and static values must be finite")
    for column, fill in zip(known.T, columns.known.values(), strict=True):
        if fill is None and np.isnan(column).any():
            raise ValueError("its known values must be there")
    for column, found in zip(static.T, columns.static.values(), strict=True):
        if found is not None and not np.isin(column[~np.isnan(column)], np.arange(len(found))).all():
            raise ValueError("its static values must be categories of the columns")


def read_config(folder: Path) -> Config:
    """Read and check the configuration of a model folder.

    Raises:
        FileNotFoundError: the folder or its configuration is missing.
        ValueError: the configuration is damaged or altered, or another version wrote it.
    """
    path = folder / _CONFIG
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no model folder {folder}.")
    try:
        found = read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder} is not the folder of a model, or not whole: there is no {_CONFIG}."
        ) from None
    form, version = found.get("format"), found.get("version")
    if type(form) is not int or not isinstance(version, str):
        raise ValueError(f"{path} is damaged or not the configuration of a model of this library.")
    if form > FORMAT:
        raise ValueError(
            f"{folder} was saved by cru {version!s:.20}, which is newer than this one, {cru.__version__}: "
            "install that version or a later one."
        )
    if form < FORMAT:
        raise ValueError(
            f"{folder} was saved by an older cru, {version!s:.20}, which kept less of a model: fit it again."
        )
    config = check(Config, found, path)
    found.pop("digest")
    try:
        same = config.digest == _digest(found)
    except (TypeError, ValueError):  # text that JSON or UTF-8 cannot hold
        same = False
    if not same:
        raise ValueError(f"{path} was altered or damaged after it was saved: its checksum differs.")
    return config


def fingerprint(forecaster: "Forecaster") -> str:
    """Return a checksum of a fitted model: variables, scaler, clock, options and weights."""
    parts = [forecaster.names_, forecaster.scaler_.to_dict(), forecaster.clock_.to_dict(), forecaster.options_]
    if forecaster.inputs_ is not None:
        parts += [_columns(forecaster), forecaster.inputs_.to_dict()]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for name, tensor in sorted(forecaster.model_.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_free(folder: Path) -> None:
    """Raise unless a folder is writable, and is new, empty or holds a model of this library."""
    ours = folder.is_dir() and _is_ours(folder / _CONFIG)
    other = folder.is_dir() and not ours and not all(_is_leftover(path.name) for path in folder.iterdir())
    if other or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} must be a new or empty folder, or one with a model of this library.")
    check_writable(folder)


def _is_ours(path: Path) -> bool:
    """Check whether `save` of any version wrote a configuration."""
    try:
        return {"format", "version", "params", "scaler"} <= read_json(path).keys()
    except (OSError, ValueError):
        return False


def _is_leftover(name: str) -> bool:
    """Check whether a file comes from a save that stopped before it wrote the configuration."""
    return is_temporary(name) or is_part(name, _PARTS)


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with tuples instead of lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _columns(forecaster: "Forecaster") -> dict[str, Any]:
    """Return the fields of `Columns`. `Kinds` has the categories."""
    fields = {name: value for name, value in vars(forecaster.columns_).items() if name != "categories"}
    static = {name: None if found is None else list(found) for name, found in fields["static"].items()}
    return fields | {"known": dict(fields["known"]), "static": static}


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _roles(columns: Columns) -> str:
    """Return the sentences of the card about known and static columns."""
    sentences = [
        f"{title}: {', '.join(f'`{name}`' for name in names)}.\n"
        for title, names in (("Known at every time", columns.known), ("Static", columns.static))
        if names
    ]
    return "".join(sentences)


def _card(forecaster: "Forecaster", *, history: bool) -> str:
    scores, columns = forecaster.scores_, forecaster.columns_
    series = forecaster.history_
    rows = [
        ("R²", f"{scores['r2']:.3f}"),
        ("R² of the last value seen, to compare", f"{scores['r2_last_value']:.3f}"),
        ("mean absolute error, in standard deviations", f"{scores['mae']:.3f}"),
        *(
            (f"inside the {n} % interval", f"{scores[f'coverage{n}']:.1%}")
            for n in (50, 90)
            if f"coverage{n}" in scores
        ),
    ]
    measured = forecaster.calibration_.measured
    doubt = f"\n{guarantee(int(scores['series'])) if measured else UNMEASURED}\n"
    table = "\n".join(f"| {name} | {figure} |" for name, figure in rows)
    size = f"{len(series):,} series, {len(series.times):,} time points" if series is not None else "a table"
    observations = (
        "`history-….npz` holds the observations of the training table, from whose end `forecast` starts. Think of that "
        "before you pass the folder on; `save(folder, history=False)` leaves them out."
        if history
        else "The folder holds no observations: give `forecast` a table."
    )
    known = list(forecaster.kinds_)
    names = ", ".join(f"`{name}`" for name in known[:20]) + (" ..." if len(known) > 20 else "")
    return f"""# A forecaster for irregular series

`{forecaster.name_}` with {forecaster.model_.num_parameters:,} parameters, fitted by cru {cru.__version__} to {size}:
{names}, with times in `{columns.time}`{f" and series named by `{columns.id}`" if columns.id else ""}.

| on {scores["count"]:,} withheld values of {scores["series"]:,} validation series | |
|---|---|
{table}
{doubt}
Kinds of values: {forecaster.kinds_.describe()}.
{_roles(columns)}
```python
from cru import Forecaster

model = Forecaster.load(".")
```

{observations}
"""
