"""The states of many series of a stream, as rows of a few growing tensors, without an object for each series."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from cru.data import Batch, SeriesSet
from cru.data.series import group_by_length
from cru.forecaster.inputs import InputState
from cru.forecaster.queries import BATCH, drop_empty_rows
from cru.models import Model
from cru.models.base import State
from cru.models.loading import check_tensors
from cru.schema import Checksum, Schema, check
from cru.shapes import Bool, Float, Float64, Int64
from cru.training.checkpoint import read_checkpoint, write_checkpoint


class StateStore:
    """A store of model states, one row for each series.

    Args:
        like: a state of one series. Its tensors have the structure, shapes and types of all states.

    >>> from cru.forecaster.state_store import StateStore
    >>> rows = StateStore((torch.zeros(1, 2), torch.zeros(1)))
    >>> number = rows.add()
    >>> rows.put(torch.tensor([number]), (torch.ones(1, 2), torch.tensor([7.0])))
    >>> rows.take(torch.tensor([number]))
    (tensor([[1., 1.]]), tensor([7.]))
    """

    def __init__(self, like: State) -> None:
        self.like, self.count = like, 0
        self.tensors = [leaf.new_zeros(16, *leaf.shape[1:]) for leaf in leaves(like)]

    def add(self, count: int = 1) -> int:
        """Append ``count`` rows of unspecified content, and return the number of the first."""
        first, self.count = self.count, self.count + count
        room = len(self.tensors[0])
        if self.count > room:  # twice the size: the mean cost of a row is constant
            more = max(room, self.count - room)
            self.tensors = [torch.cat([t, t.new_zeros(more, *t.shape[1:])]) for t in self.tensors]
        return first

    def row(self, number: int) -> State:
        """Return one row as a batch of one. It is a view that later changes of the store can overwrite."""
        return rebuilt(self.like, iter([tensor[number : number + 1] for tensor in self.tensors]))

    def take(self, numbers: Int64[Tensor, " n"]) -> State:
        """Return a copy of some rows, as a batch."""
        return rebuilt(self.like, iter([tensor.index_select(0, numbers) for tensor in self.tensors]))

    def put(self, numbers: int | Int64[Tensor, " n"], state: State) -> None:
        """Write a batch of states to the rows ``numbers``."""
        for tensor, leaf in zip(self.tensors, leaves(state), strict=True):
            tensor[numbers] = leaf[0] if isinstance(numbers, int) else leaf

    def remove(self, number: int) -> int:
        """Remove a row and move the last row to its place. Return the former number of the last row."""
        self.count -= 1
        for tensor in self.tensors:
            tensor[number] = tensor[self.count]
        return self.count

    def as_tensors(self) -> dict[str, Tensor]:
        """Return the used rows of all tensors, by names that `read` accepts."""
        return {str(number): tensor[: self.count] for number, tensor in enumerate(self.tensors)}

    def read(self, saved: dict[str, Tensor]) -> None:
        """Replace all rows by tensors from `as_tensors`."""
        self.tensors = [saved[str(number)] for number in range(len(self.tensors))]
        self.count = len(self.tensors[0])


def leaves(state: State) -> list[Tensor]:
    """Return all tensors of a nested state, in order."""
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in leaves(part)]


def rebuilt(like: State, tensors: Iterator[Tensor]) -> Any:
    """Build a state with the structure of ``like`` from other tensors."""
    if isinstance(like, Tensor):
        return next(tensors)
    parts = [rebuilt(part, tensors) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


class StreamHeader(Schema):
    """Header of a file of stream states. ``ids`` has one id for each row."""

    kind: Literal["stream"]
    model: Checksum
    ids: list[str]

    @model_validator(mode="after")
    def _unique(self) -> "StreamHeader":
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("`ids` must differ from each other")
        return self


class SeriesState(NamedTuple):
    """State of a model after the observations of each series."""

    state: State
    last: Float64[Tensor, " batch"]  # time of the last observation
    observed: Bool[Tensor, "batch variable"]  # whether a variable has an observation
    values: Float[Tensor, "batch variable"]  # last observation of each variable, scaled
    runs: Int64[Tensor, "batch variable"]  # number of observations in a row that equal it
    inputs: InputState | tuple[()]  # of known and static values, if the model has them

    @property
    def latest(self) -> Float64[Tensor, " batch"]:
        """Time of the last row, with an observation or with known values only."""
        return self.inputs.time if isinstance(self.inputs, InputState) else self.last

    @property
    def seen(self) -> Bool[Tensor, " batch"]:
        """Whether a series has an observation."""
        return self.observed.any(1)


class SeriesStates(StateStore):
    """The states of the series of a stream, by name.

    Args:
        model: the model of the stream.
        blank: the state of a series without rows.
    """

    def __init__(self, model: Model, blank: SeriesState) -> None:
        super().__init__(blank)
        self.model, self.blank = model, blank
        self.rows_of: dict[str, int] = {}  # row of each series; `names` is the inverse
        self.names: list[str] = []

    def rows(self, names: Sequence[str]) -> Int64[np.ndarray, " series"]:
        """Return the row of each series, -1 for a new one."""
        return np.array([self.rows_of.get(name, -1) for name in names], np.int64)

    def find(self, name: str) -> SeriesState | None:
        """Return the state of a series, None for a new one. Later changes of the store can overwrite it."""
        row = self.rows_of.get(name)
        return None if row is None else self.row(row)

    def add_series(self, names: Sequence[str]) -> int:
        """Add a row for each new series, and return the first of these rows."""
        first = self.add(len(names))
        self.rows_of |= {name: first + number for number, name in enumerate(names)}
        self.names += names
        return first

    def put_series(self, name: str, state: SeriesState) -> None:
        """Write the state of a series, which may be new."""
        row = self.rows_of.get(name)
        self.put(self.add_series([name]) if row is None else row, state)

    def put_inputs(self, names: Sequence[str], after: InputState) -> None:
        """Write the states of the known and static values of some series, which may be new."""
        for name in names:
            if name not in self.rows_of:
                self.put_series(name, self.blank)
        places = torch.from_numpy(self.rows(names))
        self.put(places, self.take(places)._replace(inputs=after))

    def remove_series(self, name: str) -> None:
        """Remove a series, and free its memory for others."""
        row = self.rows_of.pop(name)
        with torch.inference_mode():
            self.remove(row)
        moved = self.names.pop()
        if row < len(self.names):
            self.rows_of[moved], self.names[row] = row, moved

    def save(self, path: Path, model: str) -> None:
        """Write all states to a file, with the fingerprint of the model."""
        write_checkpoint(path, self.as_tensors(), {"kind": "stream", "model": model, "ids": self.names})

    def load(self, path: Path | str, model: str, *, single: bool) -> tuple[list[str], dict[str, Tensor]]:
        """Read the names and tensors from a file of `save`, for `replace`.

        Args:
            path: the file.
            model: the fingerprint of the model.
            single: whether the model has no ids.

        Raises:
            ValueError: the file is damaged, is not a stream, or belongs to another model.
        """
        tensors, header = read_checkpoint(Path(path))
        if header.get("kind") != "stream":
            raise ValueError(f"{path} must hold the state of a stream, from `save`, but it holds something else.")
        found = check(StreamHeader, header, path)
        if found.model != model:
            raise ValueError(f"{path} must hold a state of this model, but it holds the state of another model.")
        if single and found.ids not in ([], ["0"]):
            raise ValueError(f"`ids` in {path} must be a single '0', because the model was fitted without ids.")
        saved = self.as_tensors().items()
        check_tensors(tensors, {name: part.new_empty(len(found.ids), *part.shape[1:]) for name, part in saved}, path)
        return found.ids, tensors

    def replace(self, names: Sequence[str], saved: dict[str, Tensor]) -> None:
        """Replace all series by those of a file."""
        self.read(saved)
        self.names = list(names)
        self.rows_of = {name: row for row, name in enumerate(self.names)}

    def update_rows(self, series: SeriesSet) -> None:
        """Update the states with all observations of some series.

        Args:
            series: the observations, in scaled units, with the features of known and static values.
        """
        series = drop_empty_rows(series)
        rows = self.rows(series.ids)
        begun = rows >= 0
        if isinstance(self.blank.inputs, InputState):
            begun[begun] = self.take(torch.from_numpy(rows[begun])).seen.numpy()
            for number in np.flatnonzero(~begun & (rows >= 0)):  # only known values so far: add the series again
                self.remove_series(series.ids[number])
            rows = self.rows(series.ids)
        for known in (True, False):
            group = np.flatnonzero((begun == known) & (series.lengths > 0))
            for numbers in group_by_length(series.lengths[group], BATCH):
                chosen = group[numbers]
                self._advance(series.batch(chosen, dtype=self.model.dtype), rows[chosen] if known else None)

    def _advance(self, batch: Batch, rows: Int64[np.ndarray, " batch"] | None) -> None:
        """Advance the states of known series at ``rows``, or add new series if ``rows`` is None."""
        observed, (values, runs, whole) = batch.mask.any(1), _final_runs(batch)
        if rows is None:
            state, inputs = self.model.advance(batch), self._blank_inputs(len(batch))
            first = self.add_series(batch.ids)
            places = torch.arange(first, first + len(batch))
        else:
            places = torch.from_numpy(rows)
            kept: SeriesState = self.take(places)
            state, inputs = self.model.advance(batch, kept.state), kept.inputs
            runs = runs + torch.where(whole & kept.observed & (values == kept.values), kept.runs, 0)
            values, runs = torch.where(observed, values, kept.values), torch.where(observed, runs, kept.runs)
            observed = observed | kept.observed
        last = batch.times[:, -1]  # padding repeats the last time
        self.put(places, SeriesState(state, last, observed, values, runs, inputs))

    def _blank_inputs(self, count: int) -> InputState | tuple[()]:
        """Return the states of the known and static values of new series."""
        copies = (leaf.expand(count, *leaf.shape[1:]) for leaf in leaves(self.blank.inputs))
        found: InputState | tuple[()] = rebuilt(self.blank.inputs, iter(copies))
        return found


def _final_runs(
    batch: Batch,
) -> tuple[Float[Tensor, "batch variable"], Int64[Tensor, "batch variable"], Bool[Tensor, "batch variable"]]:
    """Return the last value of each variable, the length of its run, and whether the run has all its values."""
    step = torch.arange(batch.times.shape[1])[:, None]
    last = torch.where(batch.mask, step, 0).amax(1, keepdim=True)
    values = batch.values.gather(1, last)
    differs = torch.where(batch.mask & (batch.values != values), step, -1).amax(1, keepdim=True)
    runs = (batch.mask & (step > differs)).sum(1)
    return values[:, 0], runs, differs[:, 0] < 0
