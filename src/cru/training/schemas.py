"""The schemas of the files of a run: header of a checkpoint, line of a log."""

from typing import Any

from pydantic import model_validator

from cru.evaluation.records import Scores, Seconds
from cru.schema import AnyNumber, Count, OpenSchema, Schema, Size


class Epoch(OpenSchema):
    """What is said of an epoch: a line of log.jsonl."""

    epoch: Count
    loss: AnyNumber
    seconds: Seconds
    validation_seconds: Seconds
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
    """The header of a checkpoint of a run; `RunSettings` and `Spec` check two of them further."""

    settings: dict[str, Any]
    data_version: Size = 1  # 1 where a run is from before it was recorded
    spec: dict[str, Any]
    progress: Progress
