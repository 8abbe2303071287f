"""The schemas of the files of a run: header of a checkpoint, line of a log, result."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from cru.schema import AnyNumber, Count, OpenSchema, Schema

_Score = dict[str, AnyNumber]
_Seconds = Annotated[float, Field(ge=0)]


class Scores(OpenSchema):
    """Scores of one set of series; ``scored`` says which of them count."""

    scored: str

    @model_validator(mode="after")
    def _tables(self) -> "Scores":
        scores = self.model_extra or {}
        numbers = all(isinstance(v, dict) and all(type(n) in (int, float) for n in v.values()) for v in scores.values())
        if self.scored not in scores or not numbers:
            raise ValueError("`scored` must name one of the tables of scores, which must hold numbers")
        return self


class Epoch(OpenSchema):
    """What is said of an epoch: a line of log.jsonl."""

    epoch: Count
    loss: AnyNumber
    seconds: _Seconds
    validation_seconds: _Seconds
    validation: Scores


class Progress(Schema):
    """How far a run has come: see `cru.training.loop.Progress`."""

    epoch: Count
    best_epoch: Count
    best_score: AnyNumber
    skipped: Count
    skipped_in_a_row: Count
    history: list[Epoch]

    @model_validator(mode="after")
    def _fits(self) -> "Progress":
        if self.best_epoch > self.epoch or len(self.history) != self.epoch:
            raise ValueError("`progress` must have a line for each epoch, and a best epoch among them")
        return self


class RunHeader(Schema):
    """The header of a checkpoint of a run; `RunSettings` and `Spec` check the first two further."""

    settings: dict[str, Any]
    spec: dict[str, Any]
    progress: Progress


class Tested(OpenSchema):
    """Scores on the test set at one epoch."""

    epoch: Count
    test: Scores


class Sizes(OpenSchema):
    """How many series there were of each part."""

    test: Count


class Features(OpenSchema):
    """What the test series are of."""

    names: list[str]


class Record(OpenSchema):
    """The keys of a finished run that are read again: in result.json, and in a line of the ledger."""

    run: str
    preset: str | None
    model: str
    seed: Count
    hash: str
    scores: dict[str, Tested]
    epochs: Count
    seconds_per_epoch: _Seconds
    parameters: Count
    series: Sizes
    changed: list[str]
    shortened: bool
    settings: dict[str, Any]
    versions: dict[str, str] | None = None
    features: Features | None = None
    device: str | None = None
    finished: str | None = None
    commit: str | None = None
