"""The structural model: an exact Gaussian model of each variable, fitted by marginal likelihood, without a network."""

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
from cru.models.base import BatchLike, Model, Prediction, Spec
from cru.models.config import ModelConfig
from cru.shapes import Bool, Float, Float64

TYPICAL_GAP = 0.3  # the median gap in units of 1 / `Spec.time_scale`


@dataclass(frozen=True)
class FitSettings:
    """How the marginal likelihood is maximised."""

    steps: int = 100  # of Adam
    windows: int = 64  # in one step
    observations: int = 200  # the longest window, in time points
    entries: int = 3_000_000  # in all windows of one step, at most: of wide tables they are fewer and shorter
    rate: float = 0.1  # at the start; it falls along a cosine to a twentieth
    weight: float = 2e-4  # of the penalty that pulls log variances towards `center`
    center: float = -2.0  # of the level, the Ornstein-Uhlenbeck processes and the noise
    oscillator_center: float = -5.0  # a table must ask for an oscillator
    season_weight: float = 5e-4  # of the penalty on the squares of the seasonal mean


@dataclass(frozen=True, kw_only=True)
class StructuralConfig(ModelConfig):
    """The components. What is None follows from the times of the training set."""

    time_constants: Sequence[float] | None = None  # of the Ornstein-Uhlenbeck processes
    periods: Sequence[float] = ()  # one oscillator each, harmonics as periods of their own
    season: Sequence[float] | None = None  # periods of the mean that all series share; None: those of `periods`
    level: float | None = None  # time constant of the level of a series

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
    """y(t) = seasonal mean + level + Ornstein-Uhlenbeck processes + oscillators + noise, for each variable by itself.

    `prepare` fits the hyperparameters; there is nothing else to train. A prediction uses the observations on both
    sides. Variances include the noise of an observation.
    """

    Config: ClassVar[type] = StructuralConfig
    config: StructuralConfig
    causal: ClassVar[bool] = False

    def __init__(self, spec: Spec, config: StructuralConfig) -> None:
        super().__init__(spec, config)
        if not spec.targets_are_inputs:
            raise ValueError(
                f"{type(self).__name__} predicts the inputs themselves, of the shape {spec.input_shape}, got a "
                f"regression to targets of the shape {spec.target_shape}: take 'cru', for example."
            )
        self.layer = make_layer(spec, config)

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Fit the hyperparameters by marginal likelihood, pooled over series."""
        fit_layer(self.layer, batches if isinstance(batches, Sequence) else list(batches))

    def forward(
        self, batch: BatchLike, *, intermediates: bool = False, state: StructuralState | None = None
    ) -> Prediction:
        """Estimate every entry from all observations of the batch and of ``state``, its own included."""
        values, mask = flat_inputs(self, batch)
        with torch.no_grad():
            found = self.layer.smooth(values, batch.times, mask, state)
        return self._prediction(found.mean, found.var)

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
    """The same from the past alone, for tasks in which a prediction may use no later input."""

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
    """Condition the predicted signal on the observation of the same row, where there is one."""
    gain = torch.where(mask, var / (var + noise), 0.0)
    return mean + gain * (values - mean), var * (1 - gain)


def make_layer(spec: Spec, config: StructuralConfig) -> StructuralLayer:
    """Make the layer, with time constants from the typical gap to half of the span where none are given.

    Its parameters are fitted by `fit_layer` alone: the optimizer of the training loop does not see them.
    """
    gap, span = TYPICAL_GAP / spec.time_scale, max(spec.time_end - spec.time_start, TYPICAL_GAP / spec.time_scale)
    constants = config.time_constants
    if constants is None:
        constants = np.geomspace(gap, max(0.5 * min(span, 400 * gap), 2 * gap), 3).tolist()
    level = 1000 * span if config.level is None else config.level
    return StructuralLayer(
        spec.target_size, constants, config.periods, season=config.season, level=level
    ).requires_grad_(False)


def flat_inputs(model: Model, batch: BatchLike) -> tuple[Float[Tensor, "batch time v"], Bool[Tensor, "batch time v"]]:
    """Values and mask with one axis of variables."""
    values = model.inputs(batch)
    return values.flatten(2), batch.mask.expand_as(values).flatten(2)


class Window(NamedTuple):
    """Parts of series, side by side."""

    values: Float[Tensor, "window time variable"]
    times: Float64[Tensor, "window time"]
    mask: Bool[Tensor, "window time variable"]


def fit_layer(layer: StructuralLayer, batches: Sequence[BatchLike], settings: FitSettings | None = None) -> None:
    """Maximise the marginal likelihood over windows that are drawn anew in every step.

    Every variable counts the same, however often it is observed. A weak penalty keeps the variances of components that
    the table says nothing about near their start.
    """
    settings = settings or FitSettings()
    rng = np.random.default_rng(0)
    usable = [batch for batch in batches if bool(batch.mask.any())]
    if not usable:
        return
    with torch.enable_grad():
        layer.requires_grad_(True)
        optimizer = torch.optim.Adam(layer.parameters(), settings.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps, 0.05 * settings.rate)
        for step in range(settings.steps):
            window = draw_windows(usable[step % len(usable)], settings, rng)
            counts = window.mask.sum((0, 1)).clamp(min=1)
            loss = (layer.nll(window.values, window.times, window.mask).sum(0) / counts).sum()
            optimizer.zero_grad()
            (loss + _penalty(layer, settings)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        layer.requires_grad_(False)


def _penalty(layer: StructuralLayer, settings: FitSettings) -> Float[Tensor, ""]:
    components, waves = layer.log_var.shape[1], len(layer.periods)
    centers = [settings.center] * (components - waves) + [settings.oscillator_center] * waves
    pull = (layer.log_var - layer.log_var.new_tensor(centers)).square().sum()
    pull = pull + components * (layer.log_noise - settings.center).square().sum()
    total: Tensor = settings.weight * pull + settings.season_weight * layer.season.square().sum()
    return total


def draw_windows(batch: BatchLike, settings: FitSettings, rng: np.random.Generator) -> Window:
    """Take windows at random places; a longer series gives more of them."""
    lengths = batch.lengths.numpy(force=True)
    longest = min(settings.observations, max(20, settings.entries // (8 * batch.values[0, 0].numel())))
    count = min(settings.windows, max(2, settings.entries // (longest * batch.values[0, 0].numel())))
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
