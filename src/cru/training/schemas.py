"""The schemas of the files of a run: header of a checkpoint, line of a log."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cru.schema import AnyNumber, Count, OpenSchema, Schema, Size

Seconds = Annotated[float, Field(ge=0)]
_Scores = dict[str, AnyNumber]


class ScoresSchema(OpenSchema):
    """Scores of one set of series; ``scored`` says which of the two tables counts."""

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
    """How many series there were of each part."""

    test: Count


class FeaturesSchema(OpenSchema):
    """What the test series are of."""

    names: list[str]


class DataSchema(OpenSchema):
    """The settings of the data that tables and pages show."""

    dataset: str
    task: str


class SettingsSchema(OpenSchema):
    """The settings of a run, of whatever version: `RunSettings` checks them further."""

    data: DataSchema


class RecordSchema(OpenSchema):
    """The keys of a finished run that are read again: in result.json, and in a line of the ledger."""

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
    """What is said of an epoch: a line of log.jsonl."""

    epoch: Count
    loss: AnyNumber
    seconds: Seconds
    validation_seconds: Seconds
    validation: ScoresSchema


class ProgressSchema(Schema):
    """How far a run has come: see `cru.training.loop.Progress`."""

    epoch: Count
    best_epoch: Count
    best_score: AnyNumber
    skipped: Count
    skipped_in_a_row: Count
    history: list[EpochSchema]

    @model_validator(mode="after")
    def _fits(self) -> "ProgressSchema":
        if self.best_epoch > self.epoch or len(self.history) != self.epoch:
            raise ValueError("`progress` must have a line for each epoch, and a best epoch among them")
        return self


class RunHeader(Schema):
    """The header of a checkpoint of a run; `RunSettings` and `Spec` check two of them further."""

    settings: dict[str, Any]
    data_version: Size = 1  # 1 where a run is from before it was recorded
    spec: dict[str, Any]
    progress: ProgressSchema
