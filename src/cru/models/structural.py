"""The structural model: a Gaussian state space model of each variable, fitted by marginal likelihood."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cru.functional.structural import StructuralState
from cru.layers.checks import require
from cru.layers.structural import StructuralLayer
from cru.models.base import BatchLike, Model, ModelConfig, Prediction, Spec
from cru.shapes import Bool, Float, Float64

TYPICAL_GAP = 0.3  # the median gap in units of 1 / `Spec.time_scale`


@dataclass(frozen=True)
class StructuralFitConstants:
    """Constants of the maximisation of the marginal likelihood."""

    steps: int = 100  # steps of Adam
    windows: int = 64  # most windows in one step
    observations: int = 200  # longest window, in time points
    entries: int = 3_000_000  # approximate limit of entries in one step: wide tables have fewer, shorter windows
    rate: float = 0.1  # initial learning rate, with cosine decay to a twentieth
    weight: float = 2e-4  # weight of the penalty on the distance of log variances from `center`
    center: float = -2.0  # for the level, the Ornstein-Uhlenbeck processes and the noise
    oscillator_center: float = -5.0  # for the oscillators: small, unless the table supports them
    season_weight: float = 5e-4  # weight of the penalty on squared coefficients of the seasonal mean


STRUCTURAL_FIT = StructuralFitConstants()


@dataclass(frozen=True)
class ComponentConstants:
    """Constants of the default components."""

    processes: int = 3  # number of Ornstein-Uhlenbeck processes
    slowest: int = 400  # twice the longest time constant, in typical gaps, unless the series are shorter
    level_time_constant: float = 1000.0  # of the level, in typical spans of a series


COMPONENTS = ComponentConstants()


@dataclass(frozen=True, kw_only=True)
class StructuralConfig(ModelConfig):
    """Components of the structural model. None: chosen from the times of the training set."""

    time_constants: Sequence[float] | None = None  # of the Ornstein-Uhlenbeck processes
    periods: Sequence[float] = ()  # one oscillator for each; list harmonics as separate periods
    season: Sequence[float] | None = None  # periods of the mean that all series share; None: `periods`
    level: float | None = None  # time constant of the level

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("time_constants", "periods", "season"):
            numbers = getattr(self, name)
            fits = numbers is None or (
                isinstance(numbers, Sequence) and all(_is_positive(number) for number in numbers)
            )
            require(fits, f"`{name}` must be positive numbers, got {numbers!r}.")
        require(self.level is None or _is_positive(self.level), f"`level` must be positive, got {self.level!r}.")


class StructuralModel(Model):
    """A model of each variable separately by a Gaussian smoother.

    y(t) = seasonal mean + level + Ornstein-Uhlenbeck processes + oscillators + noise.

    `prepare` fits the hyperparameters, which are the only parameters. A prediction uses earlier and later observations.
    Predicted variances include the observation noise.

    Raises:
        ValueError: the task is a regression.
    """

    Config: ClassVar[type] = StructuralConfig
    config: StructuralConfig
    causal: ClassVar[bool] = False

    def __init__(self, spec: Spec, config: StructuralConfig) -> None:
        super().__init__(spec, config)
        if not spec.targets_are_inputs:
            raise ValueError(
                f"{type(self).__name__} predicts the inputs themselves, of the shape {spec.input_shape}, got a "
                f"regression to targets of the shape {spec.target_shape}. Use 'cru', for example."
            )
        self.layer = make_layer(spec, config)

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Fit the hyperparameters, which all series share, by marginal likelihood."""
        fit_layer(self.layer, batches if isinstance(batches, Sequence) else list(batches))

    def freeze(self) -> None:
        """Compute results that depend on the parameters alone, once."""
        self.layer.freeze()

    def forward(
        self, batch: BatchLike, *, intermediates: bool = False, state: StructuralState | None = None
    ) -> Prediction:
        """Estimate every entry from all observations of its series, its own included, and from ``state``."""
        values, mask = flat_inputs(self, batch)
        with torch.no_grad():
            found = self.layer.smooth(values, batch.times, mask, state)
        return self._prediction(found.mean, found.var)

    def structure(
        self, batch: BatchLike
    ) -> tuple[Float[Tensor, "batch time variable"], Float[Tensor, "batch time variable"]]:
        """Return the mean, and 0, because this model has no correction."""
        mean = self(batch).mean.flatten(2)
        return mean, torch.zeros_like(mean)

    def one_step_ahead(
        self, batch: BatchLike, state: StructuralState | None = None
    ) -> tuple[Prediction, StructuralState]:
        """Predict every row from the rows before it, as a stream does.

        Args:
            batch: the observations.
            state: the state of the series so far.

        Returns:
            The prediction, and the state after the last row, as `advance` returns it.
        """
        values, mask = flat_inputs(self, batch)
        with torch.no_grad():
            found = self.layer.filter(values, batch.times, mask, state)
        return self._prediction(found.mean, found.var), found.state

    def _prediction(self, mean: Tensor, var: Tensor) -> Prediction:
        shape = (*mean.shape[:2], *self.spec.target_shape)
        mean, var = (part.reshape(shape) for part in (mean, var + self.noise))
        return Prediction(mean.clamp(0, 1)) if self.spec.likelihood == "bernoulli" else Prediction(mean, var)

    @property
    def noise(self) -> Float[Tensor, " variable"]:
        """The variance of the observation noise."""
        return self.layer.hyperparameters.noise.detach()

    def _advance(self, batch: BatchLike, state: StructuralState | None) -> StructuralState:
        values, mask = flat_inputs(self, batch)
        with torch.no_grad():
            return self.layer.filter(values, batch.times, mask, state).state


class StructuralFilterModel(StructuralModel):
    """A structural model that filters, for causal tasks: a prediction uses no later observations."""

    causal: ClassVar[bool] = True

    def forward(
        self, batch: BatchLike, *, intermediates: bool = False, state: StructuralState | None = None
    ) -> Prediction:
        """Estimate every entry from the observations up to its time."""
        values, mask = flat_inputs(self, batch)
        with torch.no_grad():
            found = self.layer.filter(values, batch.times, mask, state)
        return self._prediction(*update_signal(found.mean, found.var, values, mask, self.noise))


def update_signal(
    mean: Float[Tensor, "batch time variable"],
    var: Float[Tensor, "batch time variable"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    noise: Float[Tensor, " variable"],
) -> tuple[Tensor, Tensor]:
    """Condition the predicted signal on the observation of the same entry, if there is one.

    Args:
        mean: the predicted mean of the signal.
        var: the predicted variance of the signal.
        values: the observations.
        mask: True where observed.
        noise: the variance of the observation noise.

    Returns:
        Mean and variance of the signal, without the observation noise.
    """
    gain = torch.where(mask, var / (var + noise), 0.0)
    return mean + gain * (values - mean), var * (1 - gain)


def make_layer(spec: Spec, config: StructuralConfig) -> StructuralLayer:
    """Make the layer of a structural model.

    Only `fit_layer` fits the parameters. They do not require gradients, so that the training loop does not change them.
    """
    gap, span = TYPICAL_GAP / spec.time_scale, spec.time_end - spec.time_start
    time_constants = default_time_constants(gap, span) if config.time_constants is None else config.time_constants
    level = default_level_time_constant(gap, span) if config.level is None else config.level
    return StructuralLayer(
        spec.target_size, time_constants, config.periods, season=config.season, level=level
    ).requires_grad_(False)


def default_time_constants(gap: float, span: float) -> list[float]:
    """Return the time constants of the processes, from the typical gap to half of the span of a typical series.

    The longest one is at most `ComponentConstants.slowest` / 2 gaps.

    Args:
        gap: typical time between observations.
        span: typical time span of a series.
    """
    slowest = max(0.5 * min(span, COMPONENTS.slowest * gap), 2 * gap)
    return np.geomspace(gap, slowest, COMPONENTS.processes).tolist()  # type: ignore[no-any-return]


def default_level_time_constant(gap: float, span: float) -> float:
    """Return the time constant of the level. The arguments are those of `default_time_constants`."""
    return COMPONENTS.level_time_constant * max(span, gap)


def flat_inputs(model: Model, batch: BatchLike) -> tuple[Float[Tensor, "batch time v"], Bool[Tensor, "batch time v"]]:
    """Return the values and the mask of a batch with a single axis of variables."""
    values = model.inputs(batch)
    return values.flatten(2), batch.mask.expand_as(values).flatten(2)


class Window(NamedTuple):
    """A batch of segments of series, with padding."""

    values: Float[Tensor, "window time variable"]
    times: Float64[Tensor, "window time"]
    mask: Bool[Tensor, "window time variable"]


def fit_layer(
    layer: StructuralLayer, batches: Sequence[BatchLike], constants: StructuralFitConstants = STRUCTURAL_FIT
) -> None:
    """Fit a layer in place: maximise the marginal likelihood of random windows, drawn in every step.

    All variables have the same weight, for any number of observations. With a weak penalty, variances are near a
    default if the table does not determine them.

    Args:
        layer: the layer to fit.
        batches: the batches of the training set. Without any observation, the layer does not change.
        constants: the constants of the fit.
    """
    rng = np.random.default_rng(0)
    usable = [batch for batch in batches if bool(batch.mask.any())]
    if not usable:
        return
    with torch.enable_grad():
        layer.requires_grad_(True)
        optimizer = torch.optim.Adam(layer.parameters(), constants.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, constants.steps, 0.05 * constants.rate)
        for step in range(constants.steps):
            window = draw_windows(usable[step % len(usable)], constants, rng)
            counts = window.mask.sum((0, 1)).clamp(min=1)
            loss = (layer.nll(window.values, window.times, window.mask).sum(0) / counts).sum()
            optimizer.zero_grad()
            (loss + _penalty(layer, constants)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        layer.requires_grad_(False)


def _penalty(layer: StructuralLayer, constants: StructuralFitConstants) -> Float[Tensor, ""]:
    components, waves = layer.log_var.shape[1], len(layer.periods)
    centers = [constants.center] * (components - waves) + [constants.oscillator_center] * waves
    pull = (layer.log_var - layer.log_var.new_tensor(centers)).square().sum()
    pull = pull + components * (layer.log_noise - constants.center).square().sum()
    total: Tensor = constants.weight * pull + constants.season_weight * layer.season.square().sum()
    return total


def draw_windows(batch: BatchLike, constants: StructuralFitConstants, rng: np.random.Generator) -> Window:
    """Draw windows at random places of the series, more of them from longer series.

    Args:
        batch: the series.
        constants: the numbers and lengths of windows.
        rng: the random generator.
    """
    lengths = batch.lengths.numpy(force=True)
    longest = min(constants.observations, max(20, constants.entries // (8 * batch.values[0, 0].numel())))
    count = min(constants.windows, max(2, constants.entries // (longest * batch.values[0, 0].numel())))
    share = np.maximum(1.0, lengths / longest) * (lengths > 0)
    place = (np.arange(count) + rng.random()) / count * share.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(share), place, side="right"), len(lengths) - 1)
    if (lengths <= longest).all():
        chosen = np.unique(chosen)
    size = np.minimum(lengths[chosen], longest)
    start = rng.integers(0, lengths[chosen] - size + 1)
    steps = np.arange(max(1, int(size.max())))
    valid = steps < size[:, None]
    rows = torch.from_numpy(start[:, None] + np.minimum(steps, np.maximum(size - 1, 0)[:, None]))
    owner = torch.from_numpy(chosen)[:, None]
    values = batch.values.flatten(2)
    mask = batch.mask.expand_as(batch.values).flatten(2)
    return Window(values[owner, rows], batch.times[owner, rows], mask[owner, rows] & torch.from_numpy(valid)[..., None])


def _is_positive(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
