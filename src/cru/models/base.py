"""What every model is: a batch in, a prediction out, and a training loss."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cru.functional.gaps import clip_gaps
from cru.functional.likelihood import bernoulli_nll, gaussian_nll, mean_over_times
from cru.models.config import ModelConfig
from cru.shapes import Bool, Float, Int64


@runtime_checkable
class BatchLike(Protocol):
    """What a model reads of a `cru.data.Batch`, where the fields are explained."""

    @property
    def times(self) -> Float[Tensor, "batch time"]: ...  # noqa: D102
    @property
    def values(self) -> Float[Tensor, "batch time *feature"]: ...  # noqa: D102
    @property
    def mask(self) -> Bool[Tensor, "batch time *mask"]: ...  # noqa: D102
    @property
    def targets(self) -> Float[Tensor, "batch time *target"]: ...  # noqa: D102
    @property
    def target_mask(self) -> Bool[Tensor, "batch time *target_mask"]: ...  # noqa: D102
    @property
    def lengths(self) -> Int64[Tensor, " batch"]: ...  # noqa: D102
    @property
    def observed(self) -> Bool[Tensor, "batch time"]: ...  # noqa: D102
    @property
    def valid(self) -> Bool[Tensor, "batch time"]: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a model has to know of the data before it sees any.

    >>> Spec(input_shape=(5,), target_shape=(5,)).is_image
    False
    """

    input_shape: tuple[int, ...]  # (feature,) or (channel, height, width)
    target_shape: tuple[int, ...]
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    time_scale: float = 1.0  # the Kalman family multiplies gaps with it: 0.2 on PhysioNet, 0.3 on USHCN
    time_start: float = 0.0  # the range of the training times, for models that scale time to [0, 1]
    time_end: float = 1.0
    longest_gap: float | None = None  # a stretch without readings counts as no longer; None: as long as it is
    causal: bool = False  # the task: a prediction may use no later input, as in one-step-ahead
    regression: bool = False  # the task: targets are another quantity than the inputs, whatever their shape

    def __post_init__(self) -> None:
        for name in ("input_shape", "target_shape"):
            shape = getattr(self, name)
            if len(shape) not in (1, 3) or min(shape) < 1:
                hint = " Choose a task first: cru.data.interpolation(series), say." if shape == (0,) else ""
                raise ValueError(f"`{name}` must be (feature,) or (channel, height, width), got {shape}.{hint}")
        if self.likelihood not in ("gaussian", "bernoulli"):
            raise ValueError(f"`likelihood` must be 'gaussian' or 'bernoulli', got {self.likelihood!r}.")
        if not self.time_scale > 0:
            raise ValueError(f"`time_scale` must be positive, got {self.time_scale}.")
        if self.longest_gap is not None and not self.longest_gap > 0:
            raise ValueError(f"`longest_gap` must be positive, or None, got {self.longest_gap}.")
        if not self.time_end >= self.time_start:
            raise ValueError(f"`time_end` must not lie before `time_start` = {self.time_start}, got {self.time_end}.")

    @property
    def is_image(self) -> bool:
        """Whether the inputs are pictures."""
        return len(self.input_shape) == 3

    @property
    def targets_are_inputs(self) -> bool:
        """Whether a prediction is of the inputs themselves: no regression, which other shapes can only be."""
        return not self.regression and self.target_shape == self.input_shape

    @property
    def input_size(self) -> int:
        """Input entries at one time."""
        return prod(self.input_shape)

    @property
    def target_size(self) -> int:
        """Target entries at one time."""
        return prod(self.target_shape)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `Spec.from_dict` makes it again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, read: Mapping[str, Any]) -> "Spec":
        """From what `as_dict` gave, with lists for tuples, as JSON has them."""
        shapes = {name: tuple(read[name]) for name in ("input_shape", "target_shape")}
        return cls(**(dict(read) | shapes))


def spec_of(series: Any, *, time_scale: float = 1.0) -> Spec:
    """The spec of a `cru.data.SeriesSet` whose task has been chosen: take the training set.

    >>> splits = cru.data.load("ushcn").map(cru.data.interpolation)      # doctest: +SKIP
    >>> model = cru.models.create("cru", spec_of(splits.train, time_scale=0.3), hidden_size=10)  # doctest: +SKIP
    """
    times = series.times
    return Spec(
        input_shape=series.input_shape,
        target_shape=series.target_shape,
        likelihood=series.task.likelihood if series.task is not None else "gaussian",
        time_scale=time_scale,
        time_start=float(times.min()) if len(times) else 0.0,
        time_end=float(times.max()) if len(times) else 1.0,
        causal=series.task is not None and series.task.causal,
        regression=series.task is not None and series.task.name == "regression",
    )


class Prediction(NamedTuple):
    """What a model says at the times of a batch, in the shape of its targets.

    ``intermediates`` is filled on request: ``prior``, ``posterior`` and ``gain`` for the Kalman family,
    ``evaluations`` (of the ODE function) for the ODE models.
    """

    mean: Float[Tensor, "batch time *target"]  # the probability, where the likelihood is Bernoulli
    var: Float[Tensor, "batch time *target"] | None = None  # None where the likelihood is Bernoulli
    intermediates: Mapping[str, Any] = {}


State = Any
"""What a model keeps of a series so far: a tensor, or a tuple of such, nested or not; every tensor has the batch first.
A `cru.Belief` is one. Its size does not depend on how much has been seen."""


class Model(nn.Module):
    """Base of all models. A subclass writes `forward`; the loss is the likelihood of the targets unless it says more.

    Each model has a frozen config beside it, the type of its second argument, named here as ``Config``.
    """

    Config: ClassVar[type] = ModelConfig  # no options
    causal: ClassVar[bool] = True  # a prediction depends on no later input
    pointwise: ClassVar[bool] = False  # a prediction depends on the inputs of its own time point alone
    starts_at_zero: ClassVar[bool] = False  # a new model predicts mean 0 and variance 1

    def __init__(self, spec: Spec, config: Any) -> None:
        super().__init__()
        self.spec, self.config = spec, config

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Take from the training set what is not trained by gradients, into buffers. Most models need nothing."""

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Predict the targets of ``batch`` at its times."""
        raise TypeError(f"{type(self).__name__} is a base class: use cru.models.create")

    @property
    def streams(self) -> bool:
        """Whether the model supports streaming, through `advance`."""
        return type(self)._advance is not Model._advance

    def freeze(self) -> None:
        """Compute what follows from the parameters alone once and for all: for a copy that is never trained again."""

    def advance(self, batch: BatchLike, state: State | None = None) -> State:
        """What is known after the last time of ``batch``, to go on from.

        ``model(later, state=state)`` predicts at later times, ``model.advance(later, state)`` takes in more readings.
        The numbers are those of one call on the whole. Without a ``state`` every series must have a time point.
        """
        if state is None and bool((batch.lengths == 0).any()):
            empty = int(batch.lengths.argmin())
            raise ValueError(f"series {empty} of the batch has no time point to start at: leave it out.")
        return self._advance(batch, state)

    def _advance(self, batch: BatchLike, state: Any) -> State:
        """`advance`, of a model that can."""
        reason = "it looks at the whole series" if not self.causal else "it keeps no state between calls"
        raise ValueError(f"{type(self).__name__} does not support streaming: {reason}. Use 'cru', for example.")

    def elapsed(self, batch: BatchLike, state: Any = None) -> Float[Tensor, "batch time"]:
        """The times of the batch, after that of ``state``, with no stretch without readings beyond ``longest_gap``."""
        return clip_gaps(batch.times, batch.observed, self.spec.longest_gap, None if state is None else state.time)

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """The training loss: by default the negative log-likelihood of the targets, mean over times and series.

        ``progress`` is the share of the training that is done, 0 to 1, for losses that anneal a term.
        """
        return self.nll(self(batch), batch)

    def nll(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, ""]:
        """Gaussian or Bernoulli, summed over target entries, masked, mean over time points and series."""
        targets, mask = self.targets(batch).to(prediction.mean.dtype), batch.target_mask
        if prediction.var is None:
            return mean_over_times(bernoulli_nll(targets, prediction.mean, mask), mask)
        return mean_over_times(gaussian_nll(targets, prediction.mean, prediction.var, mask), mask)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the parameters, or of the buffers where there are none."""
        tensors = chain(self.parameters(), self.buffers())  # lazily: a stream asks at every reading
        return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())

    def inputs(self, batch: BatchLike) -> Float[Tensor, "batch time *feature"]:
        """The values in the model's type, 0 wherever nothing is observed."""
        _check_shape("values", batch.values, self.spec.input_shape)
        if batch.values.shape[1] == 0:
            raise ValueError("`batch` must have at least one time point, got none.")
        return torch.where(batch.mask, batch.values, 0.0).to(self.dtype)

    def targets(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """The targets in the model's type."""
        _check_shape("targets", batch.targets, self.spec.target_shape)
        return batch.targets.to(self.dtype)

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained by gradients of the loss."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


def _check_shape(name: str, found: Tensor, expected: tuple[int, ...]) -> None:
    shape = tuple(found.shape[2:])
    if shape != expected:
        raise ValueError(
            f"`batch` must hold {name} of the shape {expected} at each time, which this model was made for, "
            f"got {shape}."
        )
