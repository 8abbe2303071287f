"""Schemas of the files of a run: header of a checkpoint, line of a log."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cru.schema import AnyNumber, Count, OpenSchema, Schema, Size

Seconds = Annotated[float, Field(ge=0)]
_Scores = dict[str, AnyNumber]


class ScoresSchema(OpenSchema):
    """Scores of one set of series. ``scored`` is the key of the main score."""

    scored: Literal["all", "hidden"]
    all: _Scores
    hidden: _Scores


class TestedSchema(OpenSchema):
    """Scores on the test set at one epoch."""

    epoch: Count
    test: ScoresSchema


class EpochsSchema(OpenSchema):
    """Scores at the best epoch and at the last."""

    best: TestedSchema
    last: TestedSchema


class SizesSchema(OpenSchema):
    """Number of series in each split."""

    test: Count


class FeaturesSchema(OpenSchema):
    """Names of the features of the test series."""

    names: list[str]


class DataSchema(OpenSchema):
    """Settings of the data that tables and pages show."""

    dataset: str
    task: str


class SettingsSchema(OpenSchema):
    """Settings of a run, of any version. `RunSettings` validates the rest."""

    data: DataSchema


class RecordSchema(OpenSchema):
    """Required keys of a finished run, in result.json and in a line of the ledger."""

    run: str
    preset: str | None
    model: str
    seed: Count
    hash: str
    scores: EpochsSchema
    epochs: Count
    seconds_per_epoch: Seconds
    parameters: Count
    series: SizesSchema
    changed: list[str]
    shortened: bool
    settings: SettingsSchema
    data_version: Count = 1
    versions: dict[str, Any] = Field(default_factory=dict)
    features: FeaturesSchema | None = None
    device: str | None = None
    finished: str | None = None
    commit: str | None = None


class EpochSchema(OpenSchema):
    """An epoch: a line of log.jsonl."""

    epoch: Count
    loss: AnyNumber
    seconds: Seconds
    validation_seconds: Seconds
    processor_seconds: Seconds
    validation: ScoresSchema


class ProgressSchema(Schema):
    """The progress of a run. See `cru.training.loop.Progress`."""

    epoch: Count
    best_epoch: Count
    best_score: AnyNumber
    skipped: Count
    skipped_in_a_row: Count
    history: list[EpochSchema]

    @model_validator(mode="after")
    def _fits(self) -> "ProgressSchema":
        if self.best_epoch > self.epoch or len(self.history) != self.epoch:
            raise ValueError("`progress` must have a line for each epoch, and its best epoch must be one of them")
        return self


class RunHeader(Schema):
    """The header of a checkpoint of a run. `RunSettings` and `Spec` validate their parts."""

    settings: dict[str, Any]
    data_version: Size = 1  # old runs do not record it
    spec: dict[str, Any]
    progress: ProgressSchema
