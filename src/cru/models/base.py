"""The base class of all models and of their options, the description of their data, and their predictions."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from math import prod
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args, get_type_hints, runtime_checkable

import torch
from torch import Tensor, nn

from cru.compute import evaluating, threads_for
from cru.errors import InputError
from cru.functional.gaps import clip_gaps
from cru.functional.likelihood import bernoulli_nll, clamp_value, gaussian_nll, mean_over_times
from cru.functional.positive import positive
from cru.layers.checks import check_count
from cru.layers.encoders import apply_where
from cru.shapes import Bool, Float, Int64

_PLAIN = {bool: "True or False", str: "a text", nn.Module: "a module", type(None): "None"}
_MAX_LOGIT = 15.0  # above 17 a probability is 1 in float32, and a wrong one has no gradient
State = Any
"""State of a model in streaming: a tensor or a nested tuple of tensors, each with the batch first, such as a
`cru.Belief`. Its size does not depend on the number of observations."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base class of all configs. Each class checks its own options when it is created."""

    def __post_init__(self) -> None:
        """Check the types of options that are not numbers, and convert integers to float where the type is float.

        The methods ``check_...`` check numbers.
        """
        for name, hint in get_type_hints(type(self)).items():
            kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            if float in kinds and type(getattr(self, name)) is int:
                object.__setattr__(self, name, _as_float(name, getattr(self, name)))
            if {*kinds} <= _PLAIN.keys() and not isinstance(getattr(self, name), kinds):
                rule = " or ".join(_PLAIN[kind] for kind in kinds)
                raise InputError(name, f"be {rule}", repr(getattr(self, name)))

    def check_counts(self, *names: str) -> None:
        """Raise InputError unless these options are integers of at least 1."""
        for name in names:
            check_count(name, getattr(self, name))

    def check_positive(self, *names: str) -> None:
        """Raise InputError unless these options are above 0."""
        self._check(names, lambda value: value > 0, "positive")

    def check_not_negative(self, *names: str) -> None:
        """Raise InputError unless these options are at least 0."""
        self._check(names, lambda value: 0 <= value < math.inf, "a number of at least 0")

    def check_shares(self, *names: str) -> None:
        """Raise InputError unless these options are at least 0 and below 1."""
        self._check(names, lambda value: 0 <= value < 1, "at least 0 and below 1")

    def _check(self, names: tuple[str, ...], rule: Callable[[float], bool], words: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not (isinstance(value, int | float) and rule(value)):
                raise InputError(name, f"be {words}", repr(value))


def _as_float(name: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InputError(name, "be a number up to 1e308", "a larger integer") from None


@runtime_checkable
class BatchLike(Protocol):
    """The attributes of a `cru.data.Batch` that a model uses. `cru.data.Batch` documents them."""

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
    """Description of the data that a model needs when it is created.

    >>> from cru.models import Spec
    >>> Spec(input_shape=(5,), target_shape=(5,)).is_image
    False
    """

    input_shape: tuple[int, ...]  # (feature,) or (channel, height, width)
    target_shape: tuple[int, ...]
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    time_scale: float = 1.0  # factor on the gaps in the Kalman family: 0.2 on PhysioNet, 0.3 on USHCN
    time_start: float = 0.0  # range of the training times, for models that scale time to [0, 1]
    time_end: float = 1.0
    longest_gap: float | None = None  # longer times without an observation are clipped to it; None: no clipping
    causal: bool = False  # task: a prediction must not use later inputs, as in one-step-ahead
    regression: bool = False  # task: the targets are another quantity than the inputs, even with the same shape

    def __post_init__(self) -> None:
        for name in ("input_shape", "target_shape"):
            shape = getattr(self, name)
            if len(shape) not in (1, 3) or min(shape) < 1:
                hint = "Choose a task first, such as cru.data.interpolation(series)." if shape == (0,) else ""
                raise InputError(name, "be (feature,) or (channel, height, width)", shape, hint)
        if self.likelihood not in ("gaussian", "bernoulli"):
            raise InputError("likelihood", "be 'gaussian' or 'bernoulli'", repr(self.likelihood))
        if not self.time_scale > 0:
            raise InputError("time_scale", "be positive", self.time_scale)
        if self.longest_gap is not None and not self.longest_gap > 0:
            raise InputError("longest_gap", "be positive or None", self.longest_gap)
        if not self.time_end >= self.time_start:
            raise InputError("time_end", f"not be before {{time_start}} = {self.time_start}", self.time_end)

    @property
    def is_image(self) -> bool:
        """Whether the inputs are images."""
        return len(self.input_shape) == 3

    @property
    def targets_are_inputs(self) -> bool:
        """Whether the targets are the inputs themselves. In a regression they are not."""
        return not self.regression and self.target_shape == self.input_shape

    @property
    def input_size(self) -> int:
        """Number of input entries at one time."""
        return prod(self.input_shape)

    @property
    def target_size(self) -> int:
        """Number of target entries at one time."""
        return prod(self.target_shape)

    def as_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON. `Spec.from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, read: Mapping[str, Any]) -> "Spec":
        """Read the result of `as_dict`. Tuples may be lists, as in JSON."""
        shapes = {name: tuple(read[name]) for name in ("input_shape", "target_shape")}
        return cls(**(dict(read) | shapes))


def spec_of(series: Any, *, time_scale: float = 1.0) -> Spec:
    """Describe a `cru.data.SeriesSet` after the choice of a task.

    Args:
        series: the training series, with a task.
        time_scale: the factor on the gaps in the Kalman family.

    Returns:
        The sizes, times and task that a model needs.

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
    """Predicted distribution of the targets, in the shape of the targets.

    ``intermediates`` is filled on request: ``prior``, ``posterior`` and ``gain`` for the Kalman family,
    ``evaluations`` (number of calls of the ODE function) for the ODE models. A skewed distribution always has
    ``center``, from which its quantiles are measured, and ``skew``, log(deviation above / deviation below the center).
    """

    mean: Float[Tensor, "batch time *target"]  # the probability if the likelihood is Bernoulli
    var: Float[Tensor, "batch time *target"] | None = None  # None if the likelihood is Bernoulli
    intermediates: Mapping[str, Any] = {}


class Model(nn.Module):
    """Base class of all models. A subclass defines `forward`. The default loss is the likelihood of the targets.

    ``Config`` is the frozen dataclass with the options of the model. It is the type of the second argument.
    """

    Config: ClassVar[type] = ModelConfig  # no options
    causal: ClassVar[bool] = True  # whether a prediction is independent of later inputs
    pointwise: ClassVar[bool] = False  # whether a prediction depends on the inputs of its own time only
    starts_at_zero: ClassVar[bool] = False  # whether a new model predicts mean 0 and variance 1

    def __init__(self, spec: Spec, config: Any) -> None:
        super().__init__()
        self.spec, self.config = spec, config

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Compute statistics of the training set, which gradients do not train. Most models need none."""

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Predict the targets of ``batch`` at its times. With ``intermediates``, also return intermediate results."""
        raise TypeError(f"{type(self).__name__} is a base class: use cru.models.create")

    @property
    def streams(self) -> bool:
        """Whether the model supports streaming, through `advance`."""
        return type(self)._advance is not Model._advance

    def freeze(self) -> None:
        """Compute results that depend on the parameters alone, once. Use it for a copy that is never trained again."""

    def advance(self, batch: BatchLike, state: State | None = None) -> State:
        """Return the state after the last time of ``batch``, for streaming.

        ``model(later, state=state)`` predicts at later times. ``model.advance(later, state)`` adds more observations.
        The results equal those of one call with all observations.

        Args:
            batch: new observations.
            state: the state to continue from.

        Returns:
            The state after the last time.

        Raises:
            ValueError: the model does not support streaming, or a series without time points has no ``state``.
        """
        if state is None and bool((batch.lengths == 0).any()):
            empty = int(batch.lengths.argmin())
            raise InputError("batch", "have a time point for every series", f"none for series {empty}")
        return self._advance(batch, state)

    def _advance(self, batch: BatchLike, state: Any) -> State:
        """Implement `advance`. A model that supports streaming overrides this method."""
        reason = "it needs the complete series" if not self.causal else "it does not implement `_advance`"
        raise ValueError(f"{type(self).__name__} does not support streaming: {reason}. Use 'cru', for example.")

    def elapsed(self, batch: BatchLike, state: Any = None) -> Float[Tensor, "batch time"]:
        """Return the times of the batch, in which times without observations are clipped to ``longest_gap``."""
        return clip_gaps(batch.times, batch.observed, self.spec.longest_gap, None if state is None else state.time)

    @contextmanager
    def inference(self, series: int, steps: int) -> Iterator[None]:
        """Apply the model in evaluation mode, without gradients, and with as many threads as a batch needs.

        Args:
            series: the number of series in the largest batch.
            steps: the number of time points of its longest series.
        """
        with threads_for(self.work(series, steps)), torch.no_grad(), evaluating(self):
            yield

    def work(self, series: int, steps: int) -> int:
        """Estimate the work of a batch: series × time points × the larger size of state and inputs."""
        return series * steps * max(getattr(self.config, "hidden_size", None) or 1, self.spec.input_size)

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """Compute the training loss: by default the mean negative log likelihood of the targets.

        Args:
            batch: the training batch.
            progress: the completed fraction of the training, 0 to 1, for losses with an annealed term.
        """
        return self.nll(self(batch), batch)

    def nll(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, ""]:
        """Compute the Gaussian or Bernoulli loss: summed over target entries, averaged over all time points."""
        targets, mask = self.targets(batch).to(prediction.mean.dtype), batch.target_mask
        if prediction.var is None:
            return mean_over_times(bernoulli_nll(targets, prediction.mean, mask), mask)
        return mean_over_times(gaussian_nll(targets, prediction.mean, prediction.var, mask), mask)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the parameters, or of the buffers if there are no parameters."""
        tensors = chain(self.parameters(), self.buffers())  # lazy: streaming reads it at every observation
        return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())

    def inputs(self, batch: BatchLike) -> Float[Tensor, "batch time *feature"]:
        """Return the values in the type of the model, 0 where not observed."""
        _check_shape("values", batch.values, self.spec.input_shape)
        if batch.values.shape[1] == 0:
            raise InputError("batch", "have at least one time point", "none")
        return torch.where(batch.mask, batch.values, 0.0).to(self.dtype)

    def targets(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Return the targets in the type of the model."""
        _check_shape("targets", batch.targets, self.spec.target_shape)
        return batch.targets.to(self.dtype)

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


class OutputHead(nn.Module):
    """A map from features at each time to the parameters of the likelihood, in the shape of the targets.

    For a Gaussian likelihood, ``mean`` computes the mean, and ``variance_map`` of ``variance`` is the variance. For a
    Bernoulli likelihood, the sigmoid of ``mean`` is the probability, and ``variance`` is not used.

    Args:
        spec: description of the data.
        mean: any module from (n, features) to (n, *target) or (n, entries of target).
        variance: the same for the raw variance.
        variance_map: a name in `cru.functional.positive`.

    >>> from torch import nn
    >>> from cru.models import OutputHead, Spec
    >>> output = OutputHead(Spec(input_shape=(5,), target_shape=(2,)), nn.Linear(8, 2), nn.Linear(8, 2), "exp")
    >>> mean, var = output(torch.zeros(3, 4, 8))
    >>> mean.shape
    torch.Size([3, 4, 2])
    """

    def __init__(self, spec: Spec, mean: nn.Module, variance: nn.Module, variance_map: str = "square") -> None:
        super().__init__()
        self.target_shape = spec.target_shape
        self.mean = mean
        self.variance = variance if spec.likelihood == "gaussian" else None
        self.variance_map = positive(variance_map)

    def forward(
        self,
        features: Float[Tensor, "batch time features"],
        spread: Float[Tensor, "batch time spread"] | None = None,
        *,
        valid: Bool[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "batch time *target"], Float[Tensor, "batch time *target"] | None]:
        """Compute mean and variance, or probability and None.

        Args:
            features: inputs of the mean.
            spread: inputs of the variance. Default: ``features``.
            valid: times to decode. Elsewhere the results are finite but have no meaning.
        """
        shape = (*features.shape[:2], *self.target_shape)
        if valid is None:
            valid = features.new_ones(shape[:2], dtype=torch.bool)
        mean = apply_where(self.mean, features, valid).reshape(shape)
        if self.variance is None:
            return clamp_value(mean, -_MAX_LOGIT, _MAX_LOGIT).sigmoid(), None
        raw = apply_where(self.variance, features if spread is None else spread, valid, fill=1.0)
        return mean, self.variance_map.forward(raw.reshape(shape))


def _check_shape(name: str, found: Tensor, expected: tuple[int, ...]) -> None:
    shape = tuple(found.shape[2:])
    if shape != expected:
        rule = f"hold {name} of the shape {expected} at each time, as in the spec of this model"
        raise InputError("batch", rule, shape)
