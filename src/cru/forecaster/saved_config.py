"""The configuration of a saved forecaster, and its checks, because the source of a folder may be untrusted."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from cru.data.tables import TIME_UNITS
from cru.forecaster.calibration import CALIBRATION, SPECIAL_LEADS
from cru.forecaster.clock import Clock
from cru.forecaster.inputs import Inputs
from cru.forecaster.kinds import Kind, Kinds
from cru.forecaster.normal_scores import CALIBRATION_PROBABILITIES
from cru.forecaster.one_step_errors import ERROR_PROBABILITIES, ONE_STEP, REPEAT_LEVELS, Situation
from cru.forecaster.table_io import Columns
from cru.schema import AnyNumber, Checksum, Count, OpenSchema, Options, PositiveNumber, Schema, check_array

FORMAT = 6  # version of the format; it rises with every incompatible change
# The files of a folder.
WEIGHTS, CONFIG, HISTORY, CARD = "model.safetensors", "config.json", "history.npz", "README.md"
PARTS = {WEIGHTS: None, HISTORY: None}  # the only files that a configuration may name
ROW_SCORES = ("table", "details")  # the scores that are lists of rows
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
                raise ValueError("`clock` must have no unit, origin and zone if times are numbers")
            return self
        if self.unit not in TIME_UNITS or self.origin is None:
            raise ValueError(f"`clock.unit` must be one of {', '.join(TIME_UNITS)}, with an origin")
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
    """Fields of `Kinds`. A validator checks that they are consistent."""

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


class NormalScoresSchema(Schema):
    """Fields of a `NormalScores`. `Config` checks their shapes."""

    used: list[bool]
    means: list[list[_Finite]]
    edges: list[list[_Finite]]
    lowest: list[list[Annotated[float, Field(ge=0, le=1)]]]
    quantiles: list[list[list[_Finite]]]
    logistic: list[list[Annotated[float, Field(ge=-1e3, le=1e3)]]]


class CalibrationSchema(Schema):
    """Fields of a `Calibration`. `Config` checks their shapes."""

    leads: list[PositiveNumber]
    quantiles: list[list[list[_Finite]]]
    likeness: list[list[Annotated[float, Field(ge=-1.001, le=1.001)]]]
    constant: list[bool]
    mean_weight: list[Annotated[float, Field(ge=0, le=1)]]
    recalibration: NormalScoresSchema
    cap: list[Annotated[float, Field(ge=-1e300, le=1e300)]]


class CoverageSchema(Schema):
    """A row of `scores_["coverage"]`: the share of withheld values inside an interval, in a range of lead times."""

    lead: str
    count: Count
    level: Annotated[float, Field(gt=0, lt=100)]
    coverage: Annotated[float, Field(ge=0, le=1)]


class OneStepErrorsSchema(Schema):
    """Fields of an `OneStepErrorDistribution`."""

    quantiles: list[list[list[_Finite]]]
    tails: list[list[list[list[_Finite]]]]
    long_gap: Annotated[float, Field(ge=1e-30, le=1e31)]
    counts: list[_Count]
    repeats: list[list[_Count]]

    def check_width(self, width: int) -> None:
        """Raise ValueError unless the fields are a distribution of the errors of ``width`` variables."""
        each = (len(Situation), width)
        quantiles = check_array("errors.quantiles", self.quantiles, (*each, len(ERROR_PROBABILITIES)))
        tails = check_array("errors.tails", self.tails, (*each, 2, 2))
        repeats = check_array("errors.repeats", self.repeats, (width, len(REPEAT_LEVELS)))
        scale, shape = tails[..., 0], tails[..., 1]
        if len(self.counts) != width or (np.diff(quantiles, axis=-1) < 0).any():
            raise ValueError(f"`errors` must have counts of {width} variables, and ascending quantiles")
        if (
            (scale < ONE_STEP.min_scale).any()
            or (shape < ONE_STEP.shapes[0]).any()
            or (shape > ONE_STEP.shapes[1]).any()
        ):
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
    errors: OneStepErrorsSchema | None
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
        if not {WEIGHTS} <= self.files.keys() <= PARTS.keys():
            raise ValueError(f"`files` must be {WEIGHTS} and {HISTORY}, or the first alone")
        leads = np.array(found.leads)
        shape = (len(SPECIAL_LEADS) + len(leads), width, len(CALIBRATION_PROBABILITIES))
        quantiles = check_array("calibration.quantiles", found.quantiles, shape)
        if (np.diff(leads) <= 0).any() or (np.diff(quantiles, axis=-1) < 0).any():
            raise ValueError("`calibration` must have ascending lead times and quantiles")
        self._check_recalibration()
        size = width if found.likeness or width <= CALIBRATION.max_correlated else 0
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
            known=self.columns.known, static=as_tuples(self.columns.static), **as_tuples(self.inputs.model_dump())
        )

    def _check_inputs(self) -> None:
        fitted, roles = self.encoder, self.columns
        if (fitted is None) == bool(roles.known or roles.static):
            raise ValueError("`inputs` must be given if and only if there are known or static columns")
        if fitted is None:
            if self.options.get("inputs") or self.options.get("later_inputs"):
                raise ValueError("`options` must not have features of known and static columns")
            return
        sizes = len(fitted.center), len(fitted.shift), len(fitted.scale)
        if sizes != (len(roles.known), fitted.expected_size, fitted.expected_size):
            raise ValueError("`inputs` must have the sizes of the known and static columns")
        if (self.options.get("inputs"), self.options.get("later_inputs")) != (fitted.size, fitted.later):
            raise ValueError("`options` must have the numbers of features of the known and static columns")

    def _check_recalibration(self) -> None:
        found, width = self.calibration.recalibration, len(self.names)
        ranges = len(found.means[0]) if found.means else 0
        means = check_array("recalibration.means", found.means, (width, max(1, ranges)))
        edges = check_array("recalibration.edges", found.edges, (width, len(CALIBRATION_PROBABILITIES)))
        lowest = check_array("recalibration.lowest", found.lowest, edges.shape)
        shape = (*means.shape, len(CALIBRATION_PROBABILITIES))
        quantiles = check_array("recalibration.quantiles", found.quantiles, shape)
        logistic = check_array("recalibration.logistic", found.logistic, (width, 2))
        rising = (means, edges, lowest, quantiles)
        if any((np.diff(each) < 0).any() for each in rising) or (logistic[:, 1] < 0).any():
            raise ValueError(
                "`recalibration` must have ascending means, edges, quantiles and probabilities, and no negative slope"
            )


def as_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with tuples instead of lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
