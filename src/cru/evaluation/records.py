"""The schemas of what is recorded of runs: scores, and the line of a finished run."""

from typing import Annotated, Any, Literal

from pydantic import Field

from cru.schema import AnyNumber, Count, OpenSchema

Seconds = Annotated[float, Field(ge=0)]
_Scores = dict[str, AnyNumber]


class Scores(OpenSchema):
    """Scores of one set of series; ``scored`` says which of the two tables counts."""

    scored: Literal["all", "hidden"]
    all: _Scores
    hidden: _Scores


class Tested(OpenSchema):
    """Scores on the test set at one epoch."""

    epoch: Count
    test: Scores


class Epochs(OpenSchema):
    """Scores at the best epoch and at the last."""

    best: Tested
    last: Tested


class Sizes(OpenSchema):
    """How many series there were of each part."""

    test: Count


class Features(OpenSchema):
    """What the test series are of."""

    names: list[str]


class Data(OpenSchema):
    """The settings of the data that tables and pages show."""

    dataset: str
    task: str


class Settings(OpenSchema):
    """The settings of a run, of whatever version: `RunSettings` checks them further."""

    data: Data


class Record(OpenSchema):
    """The keys of a finished run that are read again: in result.json, and in a line of the ledger."""

    run: str
    preset: str | None
    model: str
    seed: Count
    hash: str
    scores: Epochs
    epochs: Count
    seconds_per_epoch: Seconds
    parameters: Count
    series: Sizes
    changed: list[str]
    shortened: bool
    settings: Settings
    data_version: Count = 1
    versions: dict[str, Any] = Field(default_factory=dict)
    features: Features | None = None
    device: str | None = None
    finished: str | None = None
    commit: str | None = None
