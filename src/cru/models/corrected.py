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
from cru.functional.structural import Filtered
from cru.layers.checks import require
from cru.models.base import BatchLike, Model, Prediction, Spec
from cru.models.correction_features import (
    CORRECTION,
    CorrectedState,
    FeatureBatch,
    Features,
    absolute_errors,
    binned_features,
    count_features,
    describe_inputs,
    describe_rows,
    lead_range,
    typical_error,
    without_observations,
)
from cru.models.mlp import MLPModel
from cru.models.registry import MODELS, create, entry
from cru.models.structural import (
    STRUCTURAL_FIT,
    TYPICAL_GAP,
    StructuralConfig,
    draw_windows,
    fit_layer,
    flat_inputs,
    make_layer,
    update_signal,
)
from cru.shapes import Bool, Float, Int64


@dataclass(frozen=True, kw_only=True)
class CorrectedConfig(StructuralConfig):
    """Configuration of the structural model and of the network."""

    network: str = "mlp"  # name in `MODELS`
    network_options: Sequence[str] = ()  # texts such as "hidden_size=32", with JSON values
    gap: float | None = None  # typical time between observations; None: from `Spec.time_scale`
    calendar: Sequence[float] = ()  # periods whose phase is a feature
    inputs: int = 0  # number of features in ``extras["inputs"]`` of a batch
    later_inputs: int = 0  # number of the last of them that count only where a later observation follows

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network not in MODELS:
            found = f"got {self.network!r}; {did_you_mean(self.network, MODELS)}"
            raise ValueError(f"`network` must be a registered model, {found}")
        fits = isinstance(self.network_options, Sequence) and all("=" in str(text) for text in self.network_options)
        require(fits, f"`network_options` must be texts such as 'hidden_size=32', got {self.network_options!r}.")
        if self.gap is not None:
            self.check_positive("gap")
        fits = isinstance(self.calendar, Sequence) and all(isinstance(p, int | float) and p > 0 for p in self.calendar)
        require(fits, f"`calendar` must be positive numbers, got {self.calendar!r}.")
        require(type(self.inputs) is int and self.inputs >= 0, f"`inputs` must be at least 0, got {self.inputs!r}.")
        fits = type(self.later_inputs) is int and 0 <= self.later_inputs <= self.inputs
        require(fits, f"`later_inputs` must be 0 to `inputs`, {self.inputs}, got {self.later_inputs!r}.")


class Correction(NamedTuple):
    """Bounded outputs of the network for every variable, in standard deviations of the structural model.

    The center and the two scales define a split normal distribution, trained by pinball loss. The mean is trained by
    squared error.
    """

    center: Float[Tensor, "*row variable"]  # correction of the center, robust to outliers
    mean: Float[Tensor, "*row variable"]  # correction of the mean, which differs from the center if skewed
    log_lower: Float[Tensor, "*row variable"]  # log factor on the scale below the center
    log_upper: Float[Tensor, "*row variable"]  # log factor on the scale above the center


class CorrectedModel(Model):
    """Structural model with a network that corrects its predictions.

    With mean m and standard deviation d of the structural model, the prediction of an entry that is not observed is:

    - center: m + w · c · d,
    - mean: m + w · o · d,
    - scale below the center: d · exp(s), and above it: d · exp(t).

    The network predicts c, o, s and t for every variable. The center and the scales form a split normal distribution,
    trained by pinball loss, which is robust to outliers. The mean is trained by squared error. All outputs start at 0,
    so that a new model equals the structural model. The correction weight w, from 0 to 1, differs between variables and
    ranges of lead times.

    The features of a time point describe all variables: their mask, and their standardised errors, means and standard
    deviations under the structural model. Further features are the last and the next observation and the times to them.
    The typical size of earlier errors of the series and the phases of the calendar follow. The last features are the
    other inputs, unchanged. No feature except the error uses the observation of the same entry. So any entry can be a
    training target.

    The structural model filters if the network is causal and has a memory. Otherwise, it smooths.

    Raises:
        ValueError: the task is a regression, or the inputs are images.
    """

    Config: ClassVar[type] = CorrectedConfig
    config: CorrectedConfig
    center: Tensor
    scale: Tensor
    weight: Tensor
    trust: Tensor  # `correction_weight`, by its name in files

    def __init__(self, spec: Spec, config: CorrectedConfig) -> None:
        super().__init__(spec, config)
        if not spec.targets_are_inputs or spec.is_image:
            raise ValueError(
                "CorrectedModel predicts the inputs themselves, which must be features, got inputs of the shape "
                f"{spec.input_shape} and targets of {spec.target_shape}. Use 'cru', for example."
            )
        self.layer = make_layer(spec, config)
        self.gap = config.gap or TYPICAL_GAP / spec.time_scale
        variables = spec.target_size
        size = count_features(variables, len(config.calendar), config.inputs)
        self.network = _make_network(config, spec, size)
        self.gain = None if self.network.starts_at_zero else nn.Parameter(torch.zeros(2, 2 * variables))
        self.causal = self.network.causal and not self.network.pointwise  # type: ignore[misc]
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("weight", torch.ones(variables))
        ranges = 2 * (len(CORRECTION.lead_time_bounds) + 1)
        self.register_buffer("trust", torch.ones(2, ranges, variables))

    @property
    def correction_weight(self) -> Float[Tensor, "2 range variable"]:
        """The shares of the corrections of center and mean, by range of lead times and variable."""
        return self.trust

    @property
    def members(self) -> int:
        """The number of networks whose corrections are averaged."""
        return self.network.config.members if isinstance(self.network, MLPModel) else 1

    @property
    def streams(self) -> bool:
        """Whether the model supports streaming: its network is causal or pointwise."""
        return self.network.pointwise or (self.causal and self.network.streams)

    def freeze(self) -> None:
        """Compute results that depend on the parameters alone, once."""
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
            if number < CORRECTION.scale_batches and bool(mask.any()):
                drawn = draw_windows(batch, STRUCTURAL_FIT, np.random.default_rng(number))
                mask = drawn.mask & (
                    torch.rand(drawn.mask.shape, generator=_generator(number)) < CORRECTION.scale_shown_share
                ).to(mask.device)
                values = torch.where(mask, drawn.values, 0.0).to(self.dtype)
                x.append(self._features(values, mask, drawn.times, None)[0].x.flatten(0, 1))
        if x:
            rows = torch.cat(x)
            own = rows.shape[1] - self.config.inputs  # the other inputs are standardised already
            self.center[:own] = rows[:, :own].mean(0)
            self.scale[:own] = rows[:, :own].std(0, correction=0).clamp(min=CORRECTION.min_scale)
            if isinstance(self.network, MLPModel):  # 0 means that there is no observation
                self.network.find_bins(torch.where(rows == 0, math.nan, (rows - self.center) / self.scale))
            counts = counts.clamp(min=CORRECTION.min_count)
            weight = (counts / counts.mean()) ** -0.5
            self.weight.copy_(weight * counts.sum() / (weight * counts).sum())

    def held_out(self, batch: BatchLike, fold: Int64[Tensor, "batch time"], *, ahead: bool = False) -> Prediction:
        """Predict every row with the network that was not trained on its ``fold``.

        One network has larger errors than the average of all networks, by the variance between them. The predicted
        variance includes this variance. So standardised errors are comparable to those of the averaged prediction.

        Args:
            batch: the observations.
            fold: the fold of each row.
            ahead: whether to predict as in `one_step_ahead`.
        """
        found, mask = self.features(batch, ahead=ahead)
        corrections = self.correct(found.x, batch)
        index = fold[None, ..., None].expand(1, *mask.shape)
        single = self.combine(found, mask, Correction._make(part.gather(0, index)[0] for part in corrections))
        between = corrections.center.var(0, correction=0) if self.members > 1 else torch.zeros_like(found.mean)
        between = between * (self.correction_weight[0, self.lead_range(found.x)] * found.std).square()
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
        weight = self.correction_weight[1, self.lead_range(found.x)]
        return torch.where(mask, found.own_mean, found.mean), torch.where(mask, 0.0, weight * between * found.std)

    def forward(
        self, batch: BatchLike, *, intermediates: bool = False, state: CorrectedState | None = None
    ) -> Prediction:
        """Predict every entry. Observed entries have the prediction of the structural model, without a correction.

        Args:
            batch: the observations.
            intermediates: without effect.
            state: the state of the series so far, for streaming.
        """
        found, mask = self.features(batch, state)
        corrections = self.correct(found.x, batch, state)
        return self.combine(found, mask, Correction._make(part.mean(0) for part in corrections))

    def one_step_ahead(
        self, batch: BatchLike, state: CorrectedState | None = None
    ) -> tuple[Prediction, CorrectedState]:
        """Predict every row from the rows before it, as a stream does. The network must have no memory.

        Args:
            batch: the observations.
            state: the state of the series so far.

        Returns:
            The prediction, and the state after the last row, as `advance` returns it.
        """
        found, hidden = self.features(batch, state, ahead=True)
        corrections = self.correct(found.x, batch)
        prediction = self.combine(found, hidden, Correction._make(part.mean(0) for part in corrections))
        return prediction, self._after(found.prior, batch, state)

    def combine(self, found: Features, mask: Tensor, correction: Correction) -> Prediction:
        """Apply a correction, multiplied by its weight, to the entries that are not observed.

        Args:
            found: the features and the predictions of the structural model.
            mask: True where observed.
            correction: the outputs of the network.
        """
        weight = self.correction_weight[:, self.lead_range(found.x)]
        center = torch.where(mask, found.own_mean, found.mean + weight[0] * correction.center * found.std)
        mean = torch.where(mask, found.own_mean, found.mean + weight[1] * correction.mean * found.std)
        scale = (0.5 * (correction.log_lower + correction.log_upper)).exp()
        var = torch.where(mask, found.own_var, (found.std * scale).square())
        skew = torch.where(mask, 0.0, correction.log_upper - correction.log_lower)
        return Prediction(mean, var, {"center": center, "skew": skew})

    def lead_range(self, x: Float[Tensor, "*row feature"]) -> Int64[Tensor, "*row"]:
        """Return the range of lead times of each row, as `correction_features.lead_range` does."""
        return lead_range(x, self.spec.target_size)

    def features(
        self, batch: BatchLike, state: CorrectedState | None = None, *, ahead: bool = False
    ) -> tuple[Features, Bool[Tensor, "batch time variable"]]:
        """Apply the structural model, and compute the features of every time point.

        Args:
            batch: the observations.
            state: the state of the series so far, for streaming.
            ahead: whether to describe every time point only by the time points before it. The mask is then False.

        Returns:
            The features, and the mask of the observations that they include.
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
        std = (var + noise).clamp(min=CORRECTION.variance_floor).sqrt()
        shown = torch.zeros_like(mask) if ahead else mask

        errors = absolute_errors(values, mask, prior, noise)
        x = describe_rows(
            mean,
            std,
            values,
            mask,
            shown,
            times,
            typical_error(errors, mask, state),
            state,
            causal=forward,
            gap=self.gap,
            calendar=self.config.calendar,
        )
        if self.config.inputs:
            if inputs is None:
                inputs = torch.zeros(*mask.shape[:2], self.config.inputs, dtype=self.dtype, device=mask.device)
            x = torch.cat([x, describe_inputs(inputs, mask & (not forward), self.config.later_inputs)], -1)
        return Features(x, mean, std, own_mean, own_var + noise, prior), shown

    def correct(
        self, x: Float[Tensor, "batch time feature"], batch: Any, state: CorrectedState | None = None
    ) -> "Correction":
        """Return the bounded corrections of every network, along the first axis.

        Args:
            x: features, not standardised.
            batch: the batch, with the times and the padding.
            state: the state of the series so far, for streaming.
        """
        x = ((x - self.center) / self.scale).to(self.dtype)
        if isinstance(self.network, MLPModel):
            rows, size = x.flatten(0, 1), CORRECTION.rows_at_once
            parts = [rows[first : first + size] for first in range(0, max(1, len(rows)), size)]
            found = [self.correct_rows(part.expand(self.members, -1, -1)) for part in parts]
            whole = (torch.cat(part, 1) for part in zip(*found, strict=True))
            return Correction._make(part.reshape(len(part), *x.shape[:2], part.shape[-1]) for part in whole)
        inputs = FeatureBatch.around(x, batch)
        prediction = self.network(inputs) if state is None else self.network(inputs, state=state.network)
        assert self.gain is not None and prediction.var is not None
        log_scale = 0.5 * prediction.var.clamp(min=CORRECTION.variance_floor).log()
        return _bounded((self.gain[0] * prediction.mean)[None], (self.gain[1] * log_scale)[None])

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
        x = without_observations(found.x, dropped)
        each = correction_loss(torch.where(wanted, error, 0.0), self.correct(x, batch))
        weight = self.weight * wanted
        total: Tensor = (each * weight).sum((1, 2, 3)).mean() / weight.sum().clamp(min=1)
        return total

    @staticmethod
    def draw_dropped(mask: Bool[Tensor, "*row variable"]) -> Bool[Tensor, "*row variable"]:
        """Choose observed entries at random to withhold from the network. The share differs between rows."""
        share = 2 * CORRECTION.withheld_share * torch.rand(*mask.shape[:-1], 1, device=mask.device)
        return mask & (torch.rand(mask.shape, device=mask.device) < share)

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
            state: the state before the batch.
        """
        values, mask = flat_inputs(self, batch)
        errors = absolute_errors(values, mask, prior, self.layer.hyperparameters.noise).sum(1)
        count = mask.sum(1).to(errors.dtype)
        seen, last = mask.any(1), torch.where(mask, batch.times[..., None], -math.inf).amax(1)
        value = last_observation(values, mask).value[:, -1]
        if state is not None:
            last, value = torch.where(seen, last, state.last), torch.where(seen, value, state.value)
            errors, count = errors + state.errors, count + state.number
            seen = seen | state.seen
        last, value = torch.where(seen, last, 0.0), torch.where(seen, value, 0.0)
        first = batch.times[:, 0] if state is None else state.first
        return CorrectedState(prior.state, seen, last, value, errors, count, first, prior.state.time)


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
        CORRECTION.mean_weight * (error.clamp(-CORRECTION.max_offset, CORRECTION.max_offset) - correction.mean).square()
    )
    error, lower, upper = error - correction.center, correction.log_lower.exp(), correction.log_upper.exp()
    for p in CORRECTION.quantiles:
        z = NormalDist().inv_cdf(p)
        missed = error - z * (lower if z < 0 else upper)
        total = total + torch.maximum(p * missed, (p - 1) * missed)
    return total


def _bounded(corrections: Tensor, log_scales: Tensor) -> Correction:
    """Split the outputs of a network along their last axis, and bound them by tanh."""
    center, offset = corrections.chunk(2, -1)
    mean = center.detach() + offset  # the best offset of a symmetric variable is zero
    lower, upper = (
        torch.where(part < 0, _saturate(part, CORRECTION.max_log_shrinkage), _saturate(part, CORRECTION.max_log_growth))
        for part in log_scales.chunk(2, -1)
    )
    return Correction(
        _saturate(center, CORRECTION.max_correction), _saturate(mean, CORRECTION.max_offset), lower, upper
    )


def _saturate(x: Tensor, bound: float) -> Tensor:
    return bound * torch.tanh(x / bound)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def default_network_options(network: str, variables: int) -> dict[str, Any]:
    """Return the default options of a network in a forecaster, for the options that the network has.

    The size of the latent state grows with the square root of the number of variables. It is 10 for up to 8 variables,
    22 for 37, and at most 32. Softplus makes the output variance positive. The square of the paper can reach zero, and
    then the likelihood of an f-CRU can diverge during training.

    Args:
        network: the name of the model.
        variables: the number of variables.
    """
    size = 2 * min(16, max(5, math.ceil(math.sqrt(3 * variables))))
    known = {field.name for field in fields(entry(network).model.Config) if field.default is None}
    defaults = {"hidden_size": size, "variance_map": "softplus"}
    return {name: value for name, value in defaults.items() if name in known}


def _make_network(config: CorrectedConfig, spec: Spec, size: int) -> Model:
    """Make the network, with the features as inputs and the corrections as targets.

    Args:
        config: name and options of the network.
        spec: the spec of the corrected model.
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
    defaults = default_network_options(config.network, spec.target_size)
    if config.network == "mlp" and spec.target_size <= CORRECTION.max_binned:
        defaults["binned"] = binned_features(spec.target_size)
    given = dict(text.split("=", 1) for text in config.network_options)
    try:
        parsed = {name: json.loads(text) for name, text in given.items()}
    except ValueError:
        raise ValueError(f"`network_options` must have JSON values, got {list(config.network_options)!r}.") from None
    return create(config.network, inner, **defaults | parsed)
