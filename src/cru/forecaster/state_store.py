"""The states of many series of a stream, as rows of a few growing tensors, without an object for each series."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor

from cru.forecaster.inputs import InputState
from cru.models.base import State
from cru.schema import Checksum, Schema
from cru.shapes import Bool, Float, Float64, Int64


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
