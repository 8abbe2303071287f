"""The corrected model: a structural model, and a network that corrects its predictions."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cru.errors import did_you_mean
from cru.functional.carry_forward import last_observation
from cru.functional.structural import Filtered, StructuralState
from cru.layers.checks import require
from cru.layers.structural import cos_sin
from cru.models.base import BatchLike, Model, Prediction, Spec, State
from cru.models.mlp import MLPModel
from cru.models.registry import MODELS, create, entry
from cru.models.structural import (
    TYPICAL_GAP,
    FitSettings,
    StructuralConfig,
    draw_windows,
    fit_layer,
    flat_inputs,
    make_layer,
    update_signal,
)
from cru.shapes import Bool, Float, Float64, Int64


@dataclass(frozen=True)
class CorrectionConstants:
    """Fixed constants of the corrected model. Errors are in standard deviations of the structural model."""

    max_correction: float = 4.0  # bound on the correction of a center
    max_offset: float = 12.0  # bound on the correction of a mean, which is far from the center of a skewed variable
    max_log_growth: float = 1.5  # bound on the log factor of a scale that grows
    max_log_shrinkage: float = 2.5  # and that shrinks, as below the center of a variable that is mostly zero
    quantiles: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)  # probabilities of the pinball loss
    mean_weight: float = 0.1  # weight of the squared error of the mean, relative to the pinball loss
    withheld_share: float = 0.2  # mean share of the observed entries that a training step withholds from the network
    max_error: float = 8.0  # bound on standardised errors in the features
    typical_error: float = 0.7  # absolute standardised error that is expected before a series has any
    expected_errors: float = 3.0  # number of observations that the expected error counts as
    max_mean: float = 5.0  # bound on means in the features
    max_age: float = 1e4  # bound on times in the features, in typical gaps
    time_weight: float = 0.3  # factor on most features that are logarithms of times
    variance_floor: float = 1e-8
    max_binned: int = 16  # most variables of a table whose observations the network also sees by quantile bins
    rows_at_once: int = 4096  # time points of one matrix product, which fits into the cache of a processor
    lead_time_bounds: tuple[float, ...] = (1e-9, 4.0, 32.0)  # limits of the ranges with one trust each, in typical gaps


CONSTANTS = CorrectionConstants()


@dataclass(frozen=True, kw_only=True)
class CorrectedConfig(StructuralConfig):
    """Configuration of the structural model and of the network."""

    network: str = "mlp"  # name in `MODELS`
    network_options: Sequence[str] = ()  # texts such as "hidden_size=32", with JSON values
    gap: float | None = None  # typical time between observations; None: from `Spec.time_scale`
    calendar: Sequence[float] = ()  # periods whose phase is a feature
    inputs: int = 0  # number of features in ``extras["inputs"]`` of a batch
    later_inputs: int = 0  # number of them, the last ones, that count only where a later observation follows

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network not in MODELS:
            raise ValueError(f"`network` must be a registered model; {did_you_mean(self.network, MODELS)}")
        fits = isinstance(self.network_options, Sequence) and all("=" in str(text) for text in self.network_options)
        require(fits, f"`network_options` must be texts such as 'hidden_size=32', got {self.network_options!r}.")
        if self.gap is not None:
            self.check_positive("gap")
        fits = isinstance(self.calendar, Sequence) and all(isinstance(p, int | float) and p > 0 for p in self.calendar)
        require(fits, f"`calendar` must be positive numbers, got {self.calendar!r}.")
        require(type(self.inputs) is int and self.inputs >= 0, f"`inputs` must be at least 0, got {self.inputs!r}.")
        fits = type(self.later_inputs) is int and 0 <= self.later_inputs <= self.inputs
        require(fits, f"`later_inputs` must be 0 to `inputs`, {self.inputs}, got {self.later_inputs!r}.")


class Features(NamedTuple):
    """Inputs of the network, and the predictions of the structural model that it corrects."""

    x: Float[Tensor, "batch time feature"]
    mean: Float[Tensor, "batch time variable"]  # without the observation of the same entry
    std: Float[Tensor, "batch time variable"]  # likewise, including the observation noise
    own_mean: Float[Tensor, "batch time variable"]  # with the observation of the same entry
    own_var: Float[Tensor, "batch time variable"]  # likewise, including the observation noise
    prior: Filtered  # one-step-ahead predictions of the structural model, and its state after the last row


class Correction(NamedTuple):
    """Bounded outputs of the network for every variable, in standard deviations of the structural model.

    The center and the two scales define a split normal distribution, trained by pinball loss. The mean is trained by
    squared error.
    """

    center: Float[Tensor, "*row variable"]  # correction of the center, robust to outliers
    mean: Float[Tensor, "*row variable"]  # correction of the mean, which differs from the center if skewed
    log_lower: Float[Tensor, "*row variable"]  # log factor on the scale below the center
    log_upper: Float[Tensor, "*row variable"]  # log factor on the scale above the center


class CorrectedState(NamedTuple):
    """State of a series between two calls, for streaming."""

    base: StructuralState
    seen: Bool[Tensor, "batch variable"]  # variables observed so far
    last: Float64[Tensor, "batch variable"]  # time of the last observation of each variable
    value: Float[Tensor, "batch variable"]  # last observation of each variable
    errors: Float[Tensor, "batch variable"]  # sum of absolute standardised errors of the observations so far
    number: Float[Tensor, "batch variable"]  # of observations so far
    first: Float64[Tensor, " batch"]  # first time of the series
    network: State  # state of a network with a memory; otherwise the last time


class CorrectedModel(Model):
    """Structural model with a network that corrects its predictions.

    With mean m and standard deviation d of the structural model, the prediction of an entry that is not observed is:

    - center: m + trust · c · d,
    - mean: m + trust · o · d,
    - scale below the center: d · exp(s), and above it: d · exp(t).

    The network predicts c, o, s and t for every variable. The center and the scales form a split normal distribution,
    trained by pinball loss, which is robust to outliers. The mean is trained by squared error. All outputs start at 0,
    so that a new model equals the structural model. The trust is a share from 0 to 1 for each variable and range of
    lead times.

    The features of a time point describe all variables: which are observed, and their standardised errors, means and
    standard deviations under the structural model. Further features are the last and the next observation, the times to
    them, the typical size of earlier errors of the series, and the phases of the calendar. The inputs besides the
    observations come last, as they are. No feature except the error uses the observation of the same entry. So any
    entry can be a training target.

    The structural model filters if the network is causal and has a memory. Otherwise, it smooths.

    Raises:
        ValueError: the task is a regression, or the inputs are images.
    """

    Config: ClassVar[type] = CorrectedConfig
    config: CorrectedConfig
    center: Tensor
    scale: Tensor
    weight: Tensor
    trust: Tensor

    def __init__(self, spec: Spec, config: CorrectedConfig) -> None:
        super().__init__(spec, config)
        if not spec.targets_are_inputs or spec.is_image:
            raise ValueError(
                "CorrectedModel predicts the inputs themselves, which must be features, got inputs of the shape "
                f"{spec.input_shape} and targets of {spec.target_shape}: take 'cru', for example."
            )
        self.layer = make_layer(spec, config)
        self.gap = config.gap or TYPICAL_GAP / spec.time_scale
        variables = spec.target_size
        size = 11 * variables + 3 + 2 * len(config.calendar) + config.inputs
        self.network = _make_network(config, spec, size)
        self.gain = None if self.network.starts_at_zero else nn.Parameter(torch.zeros(2, 2 * variables))
        self.causal = self.network.causal and not self.network.pointwise  # type: ignore[misc]
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("weight", torch.ones(variables))
        ranges = 2 * (len(CONSTANTS.lead_time_bounds) + 1)
        self.register_buffer("trust", torch.ones(2, ranges, variables))  # shares of the corrections of center and mean

    @property
    def members(self) -> int:
        """The number of networks whose corrections are averaged."""
        return self.network.config.members if isinstance(self.network, MLPModel) else 1

    @property
    def streams(self) -> bool:
        """Whether the model supports streaming: its network is causal or pointwise."""
        return self.network.pointwise or (self.causal and self.network.streams)

    def freeze(self) -> None:
        """Compute once what depends on the parameters only."""
        self.layer.freeze()
        self.network.freeze()

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Fit the structural model, then set the scales of the features and the weights in the loss."""
        kept = batches if isinstance(batches, Sequence) else list(batches)
        fit_layer(self.layer, kept)
        self.find_scales(kept)

    @torch.no_grad()
    def find_scales(self, batches: Sequence[BatchLike]) -> None:
        """Set the center and scale of each feature, and larger weights in the loss for rarely observed variables."""
        x, counts = [], torch.zeros_like(self.weight)
        for number, batch in enumerate(batches):
            _, mask = flat_inputs(self, batch)
            counts += mask.sum((0, 1))
            if number < 4 and bool(mask.any()):
                drawn = draw_windows(batch, FitSettings(), np.random.default_rng(number))
                mask = drawn.mask & (torch.rand(drawn.mask.shape, generator=_generator(number)) < 0.8).to(mask.device)
                values = torch.where(mask, drawn.values, 0.0).to(self.dtype)
                x.append(self._features(values, mask, drawn.times, None)[0].x.flatten(0, 1))
        if x:
            rows = torch.cat(x)
            own = rows.shape[1] - self.config.inputs  # the inputs are standardised already
            self.center[:own] = rows[:, :own].mean(0)
            self.scale[:own] = rows[:, :own].std(0, correction=0).clamp(min=0.05)
            if isinstance(self.network, MLPModel):  # 0 means that there is no observation
                self.network.find_bins(torch.where(rows == 0, math.nan, (rows - self.center) / self.scale))
            counts = counts.clamp(min=50)
            weight = (counts / counts.mean()) ** -0.5
            self.weight.copy_(weight * counts.sum() / (weight * counts).sum())

    def held_out(self, batch: BatchLike, fold: Int64[Tensor, "batch time"], *, ahead: bool = False) -> Prediction:
        """Predict every row with the network that was not trained on its ``fold``.

        One network has larger errors than the average of all networks, by the variance between them. The predicted
        variance includes this variance. So standardised errors are comparable to those of the averaged prediction.

        Args:
            batch: the observations.
            fold: the fold of each row.
            ahead: predict as in `one_step_ahead`.
        """
        found, mask = self.features(batch, ahead=ahead)
        corrections = self.correct(found.x, batch)
        index = fold[None, ..., None].expand(1, *mask.shape)
        single = self.combine(found, mask, Correction._make(part.gather(0, index)[0] for part in corrections))
        between = corrections.center.var(0, correction=0) if self.members > 1 else torch.zeros_like(found.mean)
        between = between * (self.trust[0, self.lead_range(found.x)] * found.std).square()
        assert single.var is not None
        return single._replace(var=single.var + torch.where(mask, 0.0, between))

    def uncorrected(self, batch: BatchLike) -> Prediction:
        """Predict with the structural model alone."""
        found, mask = self.features(batch)
        return self.combine(found, mask, Correction._make([torch.zeros_like(found.mean)] * 4))

    def structure(
        self, batch: BatchLike
    ) -> tuple[Float[Tensor, "batch time variable"], Float[Tensor, "batch time variable"]]:
        """Return the mean of the structural model, and the standard deviation of the correction between networks."""
        found, mask = self.features(batch)
        between = self.correct(found.x, batch).mean.std(0, correction=0)
        trust = self.trust[1, self.lead_range(found.x)]
        return torch.where(mask, found.own_mean, found.mean), torch.where(mask, 0.0, trust * between * found.std)

    def forward(
        self, batch: BatchLike, *, intermediates: bool = False, state: CorrectedState | None = None
    ) -> Prediction:
        """Predict every entry. Observed entries come from the structural model, without a correction."""
        found, mask = self.features(batch, state)
        corrections = self.correct(found.x, batch, state)
        return self.combine(found, mask, Correction._make(part.mean(0) for part in corrections))

    def one_step_ahead(
        self, batch: BatchLike, state: CorrectedState | None = None
    ) -> tuple[Prediction, CorrectedState]:
        """Predict every row from the rows before it, as a stream does. The network must have no memory.

        Args:
            batch: the observations.
            state: of the series so far.

        Returns:
            The prediction, and the state after the last row, as `advance` returns it.
        """
        found, hidden = self.features(batch, state, ahead=True)
        corrections = self.correct(found.x, batch)
        said = self.combine(found, hidden, Correction._make(part.mean(0) for part in corrections))
        return said, self._after(found.prior, batch, state)

    def combine(self, found: Features, mask: Tensor, correction: Correction) -> Prediction:
        """Apply a correction, multiplied by the trust, to the entries that are not observed."""
        trust = self.trust[:, self.lead_range(found.x)]
        center = torch.where(mask, found.own_mean, found.mean + trust[0] * correction.center * found.std)
        mean = torch.where(mask, found.own_mean, found.mean + trust[1] * correction.mean * found.std)
        scale = (0.5 * (correction.log_lower + correction.log_upper)).exp()
        var = torch.where(mask, found.own_var, (found.std * scale).square())
        skew = torch.where(mask, 0.0, correction.log_upper - correction.log_lower)
        return Prediction(mean, var, {"center": center, "skew": skew})

    def lead_range(self, x: Float[Tensor, "*row feature"]) -> Int64[Tensor, "*row"]:
        """Return the range of lead times of each row: of the time to the nearest observation at another row.

        Rows with a later observation come first, then rows without one, which are forecasts.

        Args:
            x: features, not standardised.
        """
        size = self.spec.target_size
        nearest, no_later = x[..., 8 * size].double().expm1(), x[..., 7 * size : 8 * size] > 0.5
        bounds = nearest.new_tensor(CONSTANTS.lead_time_bounds)
        return torch.bucketize(nearest, bounds) + (len(bounds) + 1) * no_later.all(-1).long()

    def features(
        self, batch: BatchLike, state: CorrectedState | None = None, *, ahead: bool = False
    ) -> tuple[Features, Bool[Tensor, "batch time variable"]]:
        """Run the structural model, and compute the features of every time point. Return them with the mask.

        Args:
            batch: the observations.
            state: of the series so far, for streaming.
            ahead: describe every time point by the time points before it. Its own observations are not shown, so the
                mask is False.
        """
        values, mask = flat_inputs(self, batch)
        inputs = batch.extras["inputs"] if self.config.inputs else None  # type: ignore[attr-defined]
        return self._features(values, mask, batch.times, state, ahead=ahead, inputs=inputs)

    @torch.no_grad()
    def _features(
        self,
        values: Tensor,
        mask: Tensor,
        times: Tensor,
        state: CorrectedState | None,
        *,
        ahead: bool = False,
        inputs: Tensor | None = None,
    ) -> tuple[Features, Bool[Tensor, "batch time variable"]]:
        base, noise = None if state is None else state.base, self.layer.hyperparameters.noise
        prior = self.layer.filter(values, times, mask, base)
        forward = self.causal or ahead
        if forward:
            mean, var = prior.mean, prior.var
            own_mean, own_var = (mean, var) if ahead else update_signal(mean, var, values, mask, noise)
        else:
            own_mean, own_var, mean, var = self.layer.smooth(values, times, mask, base)
        std = (var + noise).clamp(min=CONSTANTS.variance_floor).sqrt()
        shown = torch.zeros_like(mask) if ahead else mask

        def standardised(nearest: Tensor, known: Tensor) -> Tensor:
            return torch.where(known, (nearest - mean) / std, 0.0).clamp(-CONSTANTS.max_error, CONSTANTS.max_error)

        x = torch.cat(
            [
                shown.to(mean.dtype),
                standardised(values, shown),
                mean.clamp(-CONSTANTS.max_mean, CONSTANTS.max_mean),
                std.log(),
                self._ages(mask, times, state, causal=forward).to(mean.dtype),
                standardised(*_last_value(values, mask, state)),
                standardised(*_next_value(values, mask & (not forward))),
                self._typical_error(values, mask, prior, state),
                cos_sin(times, self.config.calendar).to(mean.dtype),
                self._inputs(inputs, mask & (not forward)),
            ],
            -1,
        )
        return Features(x, mean, std, own_mean, own_var + noise, prior), shown

    def _inputs(
        self, inputs: Tensor | None, mask: Bool[Tensor, "batch time variable"]
    ) -> Float[Tensor, "batch time input"]:
        """Return the inputs, 0 if there are none. Those of the future are 0 where no observation of ``mask`` follows.

        Without a later observation, a row is a forecast, and its future is unknown or ends at the horizon.
        """
        size, later = self.config.inputs, self.config.later_inputs
        if inputs is None or not size:
            return torch.zeros(*mask.shape[:2], size, dtype=self.dtype, device=mask.device)
        observed = mask.any(-1, keepdim=True).to(inputs.dtype)
        follows = observed.flip(1).cumsum(1).flip(1) - observed > 0
        return torch.cat([inputs[..., : size - later], inputs[..., size - later :] * follows], -1)

    def _errors(self, values: Tensor, mask: Tensor, prior: Filtered) -> Float[Tensor, "batch time variable"]:
        """Return the absolute standardised error of each observation given strictly earlier ones, otherwise 0."""
        std = (prior.var + self.layer.hyperparameters.noise).clamp(min=CONSTANTS.variance_floor).sqrt()
        return torch.where(mask, (values - prior.mean).abs() / std, 0.0).clamp(max=CONSTANTS.max_error)

    def _typical_error(
        self, values: Tensor, mask: Tensor, prior: Filtered, state: CorrectedState | None
    ) -> Float[Tensor, "batch time variable"]:
        """Return the logarithm of the mean of `_errors` over the earlier rows of a series.

        Some series vary more than others, which the structural model does not know.
        """
        errors, count = self._errors(values, mask, prior), mask.to(prior.mean.dtype)
        total, number = errors.cumsum(1) - errors, count.cumsum(1) - count
        if state is not None:
            total, number = total + state.errors[:, None], number + state.number[:, None]
        expected = CONSTANTS.expected_errors
        return ((total + expected * CONSTANTS.typical_error) / (number + expected)).log()

    def _ages(
        self, mask: Tensor, times: Tensor, state: CorrectedState | None, *, causal: bool
    ) -> Float[Tensor, "batch time age"]:
        """Compute the features that depend on times.

        These are logarithms of the times since and until the nearest other observation, and of the time since the start
        of the series. Flags mark variables without an earlier or a later observation.
        """
        never = torch.full(mask.shape[::2], -math.inf, dtype=torch.float64, device=mask.device)
        last = never if state is None else torch.where(state.seen, state.last, never)
        first = times[:, :1] if state is None else state.first[:, None]
        moments = times[..., None]
        since = moments - _newest(torch.where(mask, moments, -math.inf), last)
        any_since = nearest = since.amin(-1, keepdim=True)
        until = torch.full_like(since, math.inf)
        if not causal:
            until = -_newest(torch.where(mask, -moments, -math.inf).flip(1), never).flip(1) - moments
            nearest = torch.minimum(any_since, until.amin(-1, keepdim=True))

        def log(age: Tensor) -> Tensor:
            return (age.clamp(max=CONSTANTS.max_age * self.gap) / self.gap).clamp(min=0).log1p()

        start = log((times - first)[..., None])
        own = [CONSTANTS.time_weight * log(since), CONSTANTS.time_weight * log(until), since.isinf(), until.isinf()]
        return torch.cat(
            [*(part.double() for part in own), log(nearest), log(any_since), CONSTANTS.time_weight * start], -1
        )

    def correct(
        self, x: Float[Tensor, "batch time feature"], batch: Any, state: CorrectedState | None = None
    ) -> "Correction":
        """Return the bounded corrections of every network, along the first axis.

        Args:
            x: features, not standardised.
            batch: gives the times and the padding.
            state: of the series so far, for streaming.
        """
        x = ((x - self.center) / self.scale).to(self.dtype)
        if isinstance(self.network, MLPModel):
            rows, size = x.flatten(0, 1), CONSTANTS.rows_at_once
            parts = [rows[first : first + size] for first in range(0, max(1, len(rows)), size)]
            found = [self.correct_rows(part.expand(self.members, -1, -1)) for part in parts]
            whole = (torch.cat(part, 1) for part in zip(*found, strict=True))
            return Correction._make(part.reshape(len(part), *x.shape[:2], part.shape[-1]) for part in whole)
        inputs = FeatureBatch.around(x, batch)
        said = self.network(inputs) if state is None else self.network(inputs, state=state.network)
        assert self.gain is not None and said.var is not None
        log_scale = 0.5 * said.var.clamp(min=CONSTANTS.variance_floor).log()
        return _bounded((self.gain[0] * said.mean)[None], (self.gain[1] * log_scale)[None])

    def correct_rows(self, x: Float[Tensor, "member row feature"]) -> "Correction":
        """Return the bounded corrections of networks without a memory.

        Args:
            x: standardised features. The rows can differ between networks.
        """
        assert isinstance(self.network, MLPModel)
        return _bounded(*self.network.members(x).chunk(2, -1))

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """Return the weighted `correction_loss` of targets not observed, and of entries that this step withholds."""
        values, mask = flat_inputs(self, batch)
        targets = self.targets(batch)
        dropped = self.draw_dropped(mask)
        found, _ = self.features(batch)
        wanted = (batch.target_mask & ~mask) | dropped
        error = (torch.where(mask, values, targets) - found.mean) / found.std
        x = self.withhold(found.x, dropped)
        each = correction_loss(torch.where(wanted, error, 0.0), self.correct(x, batch))
        weight = self.weight * wanted
        total: Tensor = (each * weight).sum((1, 2, 3)).mean() / weight.sum().clamp(min=1)
        return total

    @staticmethod
    def draw_dropped(mask: Bool[Tensor, "*row variable"]) -> Bool[Tensor, "*row variable"]:
        """Choose observed entries at random to withhold from the network. The share differs between rows."""
        share = 2 * CONSTANTS.withheld_share * torch.rand(*mask.shape[:-1], 1, device=mask.device)
        return mask & (torch.rand(mask.shape, device=mask.device) < share)

    @staticmethod
    def withhold(
        x: Float[Tensor, "*row feature"], dropped: Bool[Tensor, "*row variable"]
    ) -> Float[Tensor, "*row feature"]:
        """Set the mask and error features of dropped entries to 0, as if these were not observed.

        The other features of an entry do not depend on its own observation.
        """
        size = dropped.shape[-1]
        shown = torch.where(dropped.repeat(*(1,) * (dropped.ndim - 1), 2), 0.0, x[..., : 2 * size])
        return torch.cat([shown, x[..., 2 * size :]], -1)

    def _advance(self, batch: BatchLike, state: CorrectedState | None) -> CorrectedState:
        values, mask = flat_inputs(self, batch)
        with torch.no_grad():
            prior = self.layer.filter(values, batch.times, mask, None if state is None else state.base)
        after = self._after(prior, batch, state)
        if self.network.pointwise:
            return after
        x = ((self.features(batch, state)[0].x - self.center) / self.scale).to(self.dtype)
        network = self.network.advance(FeatureBatch.around(x, batch), None if state is None else state.network)
        return after._replace(network=network)

    def _after(self, prior: Filtered, batch: BatchLike, state: CorrectedState | None) -> CorrectedState:
        """Return the state after a batch, for a network without a memory.

        Args:
            prior: one-step-ahead predictions of the structural model, and its state after the batch.
            batch: the observations.
            state: before the batch.
        """
        values, mask = flat_inputs(self, batch)
        errors, count = self._errors(values, mask, prior).sum(1), mask.sum(1).to(prior.mean.dtype)
        seen, last = mask.any(1), torch.where(mask, batch.times[..., None], -math.inf).amax(1)
        value = last_observation(values, mask).value[:, -1]
        if state is not None:
            last, value = torch.where(seen, last, state.last), torch.where(seen, value, state.value)
            errors, count = errors + state.errors, count + state.number
            seen = seen | state.seen
        last, value = torch.where(seen, last, 0.0), torch.where(seen, value, 0.0)
        first = batch.times[:, 0] if state is None else state.first
        return CorrectedState(prior.state, seen, last, value, errors, count, first, prior.state.time)


class FeatureBatch(NamedTuple):
    """A batch whose inputs are the features, all of them observed, for a network with a memory."""

    times: Float64[Tensor, "batch time"]
    values: Float[Tensor, "batch time feature"]
    mask: Bool[Tensor, "batch time feature"]
    targets: Float[Tensor, "batch time target"]
    target_mask: Bool[Tensor, "batch time target"]
    lengths: Int64[Tensor, " batch"]
    valid: Bool[Tensor, "batch time"]

    @property
    def observed(self) -> Bool[Tensor, "batch time"]:
        """The time points that are not padding."""
        return self.valid

    @staticmethod
    def around(x: Float[Tensor, "batch time feature"], batch: Any) -> "FeatureBatch":
        """Make a batch of the features ``x`` at the times of ``batch``."""
        mask = batch.valid[..., None].expand_as(x)
        none = x[..., :0]
        return FeatureBatch(batch.times, torch.where(mask, x, 0.0), mask, none, none.bool(), batch.lengths, batch.valid)


def correction_loss(error: Tensor, correction: Correction) -> Tensor:
    """Return the pinball loss of a split normal distribution plus the weighted squared error of the mean.

    The pinball loss is robust to outliers. The mean of a skewed variable differs from the center and so has a separate
    term.

    Args:
        error: value minus mean of the structural model, in its standard deviations.
        correction: outputs of the network, in the same unit.

    Returns:
        The loss of each entry.
    """
    total = (
        CONSTANTS.mean_weight * (error.clamp(-CONSTANTS.max_offset, CONSTANTS.max_offset) - correction.mean).square()
    )
    error, lower, upper = error - correction.center, correction.log_lower.exp(), correction.log_upper.exp()
    for p in CONSTANTS.quantiles:
        z = NormalDist().inv_cdf(p)
        missed = error - z * (lower if z < 0 else upper)
        total = total + torch.maximum(p * missed, (p - 1) * missed)
    return total


def _bounded(corrections: Tensor, log_scales: Tensor) -> Correction:
    """Split the outputs of a network along their last axis, and bound them by tanh."""
    center, offset = corrections.chunk(2, -1)
    mean = center.detach() + offset  # the best offset of a symmetric variable is zero
    lower, upper = (
        torch.where(part < 0, _saturate(part, CONSTANTS.max_log_shrinkage), _saturate(part, CONSTANTS.max_log_growth))
        for part in log_scales.chunk(2, -1)
    )
    return Correction(_saturate(center, CONSTANTS.max_correction), _saturate(mean, CONSTANTS.max_offset), lower, upper)


def _saturate(x: Tensor, bound: float) -> Tensor:
    return bound * torch.tanh(x / bound)


def _last_value(
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    state: CorrectedState | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the last observation in the rows before each row, and whether there is one."""
    first = (values[:, :1], torch.zeros_like(mask[:, :1]))
    if state is not None:
        first = (state.value[:, None].to(values.dtype), state.seen[:, None])
    before = (torch.cat([start, part[:, :-1]], 1) for start, part in zip(first, (values, mask), strict=True))
    value, _, known = last_observation(*before)
    return value, known


def _next_value(
    values: Float[Tensor, "batch time variable"], mask: Bool[Tensor, "batch time variable"]
) -> tuple[Tensor, Tensor]:
    """Return the next observation in the rows after each row, and whether there is one."""
    value, known = _last_value(values.flip(1), mask.flip(1))
    return value.flip(1), known.flip(1)


def _newest(times: Float64[Tensor, "batch time variable"], last: Float64[Tensor, "batch variable"]) -> Tensor:
    """Return the maximum of ``last`` and of the times in the rows before each row."""
    before = torch.cat([last[:, None], times[:, :-1]], 1)
    return before.cummax(1).values


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _binned(variables: int) -> list[int]:
    """Return the numbers of the features that are errors, last observations or next observations."""
    last = 8 * variables + 3
    return [*range(variables, 2 * variables), *range(last, last + 2 * variables)]


def _make_network(config: CorrectedConfig, spec: Spec, size: int) -> Model:
    """Make the network, with the features as inputs and the corrections as targets.

    Args:
        config: name and options of the network.
        spec: of the corrected model.
        size: number of features.

    Raises:
        ValueError: an option is not valid JSON.
    """
    inner = Spec(
        input_shape=(size,),
        target_shape=(2 * spec.target_size,),
        time_scale=spec.time_scale,
        time_start=spec.time_start,
        time_end=spec.time_end,
        longest_gap=spec.longest_gap,
        causal=spec.causal,
        regression=True,
    )
    known = {field.name for field in fields(entry(config.network).model.Config) if field.default is None}
    size = 2 * min(16, max(5, math.ceil(math.sqrt(3 * spec.target_size))))
    own: dict[str, Any] = {"hidden_size": size, "variance_map": "softplus"}
    if config.network == "mlp" and spec.target_size <= CONSTANTS.max_binned:
        own["binned"], known = _binned(spec.target_size), known | {"binned"}
    given = dict(text.split("=", 1) for text in config.network_options)
    try:
        parsed = {name: json.loads(text) for name, text in given.items()}
    except ValueError:
        raise ValueError(f"`network_options` must have JSON values, got {list(config.network_options)!r}.") from None
    return create(config.network, inner, **{name: value for name, value in own.items() if name in known} | parsed)
