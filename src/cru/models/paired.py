"""The deep paired CRU: an encoder, a stack of paired filters with gated units, and a decoder."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from cru.functional import Belief
from cru.functional.likelihood import gaussian_nll, mean_over_times
from cru.layers.encoders import apply_where, features_of
from cru.layers.paired_block import MAX_DEVIATION, BlockState, FeatureBank, GatedUnit, PairedBlock
from cru.models.base import BatchLike, Model, ModelConfig, OutputHead, Prediction, Spec
from cru.models.networks import default_variance_map, make_decoder, make_encoder, make_variance_decoder
from cru.models.statistics import feature_moments
from cru.shapes import Float


@dataclass(frozen=True)
class PairedConstants:
    """Constants of the paired models."""

    shifted_share: float = 0.2  # fraction of the features that jitter shifts
    shift: float = 100.0  # standard deviation of that shift at jitter = 1, in standard deviations of the feature
    variance_floor: float = 0.01  # of a standardised feature; zero-inflated features would otherwise have variance 0


CONSTANTS = PairedConstants()


@dataclass(frozen=True, kw_only=True)
class PairedConfig(ModelConfig):
    """Options of the paired models."""

    layers: int = 2
    pairs: int = 32  # of each layer
    width: int = 64  # of the residual stream between the layers
    copies: int = 2  # pairs for each single feature; images have none
    modulated: bool = False  # whether the last observation changes decay and frequency of each pair
    dropout: float = 0.0
    jitter: float = 0.0  # augmentation: multiply features of a series by exp(jitter · normal), and shift some of them
    beta: float = 0.5  # weight exponent of the loss: 0 is the likelihood, 1 the gradient of the squared error
    encoder: nn.Module | None = field(default=None, repr=False)  # (n, *image) or (n, [features, mask]) -> (n, any)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("layers", "pairs", "width", "copies")
        self.check_shares("dropout")
        self.check_not_negative("beta", "jitter")


class PairedModel(Model):
    """A stack of paired filters. Each layer filters the output of the previous layer exactly, then mixes channels.

    Features are standardised by the training set. Each feature has its own pairs (`FeatureBank`), whose means are added
    to the output.
    """

    Config: ClassVar[type] = PairedConfig
    smooth: ClassVar[bool] = False
    config: PairedConfig

    def __init__(self, spec: Spec, config: PairedConfig) -> None:
        super().__init__(spec, config)
        span = (spec.time_end - spec.time_start) * spec.time_scale or 1.0
        options: dict[str, Any] = {"span": span, "time_scale": spec.time_scale, "smooth": self.smooth}
        self.stem: ImageStem | FeatureStem
        self.stem = ImageStem(spec, config) if spec.is_image else FeatureStem(spec, config, **options)
        self.blocks = nn.ModuleList(
            PairedBlock(config.width, config.pairs, dropout=config.dropout, modulated=config.modulated, **options)
            for _ in range(config.layers)
        )
        if spec.is_image:
            mean, variance = make_decoder(spec, config.width), make_variance_decoder(spec, config.width)
        else:
            mean, variance = (_head(config.width, spec.target_size) for _ in range(2))
        self.output = OutputHead(spec, mean, variance, default_variance_map(spec) if spec.is_image else "softplus")

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Compute mean and standard deviation of each feature."""
        self.stem.prepare(batches)

    def forward(
        self, batch: BatchLike, *, state: "PairedState | None" = None, intermediates: bool = False
    ) -> Prediction:
        """Compute the stack, then decode at every time.

        Args:
            batch: the batch.
            state: the state to continue from.
            intermediates: whether to return the residual stream, too.
        """
        return self._predict(self.inputs(batch), batch, state, intermediates)

    def _advance(self, batch: BatchLike, state: "PairedState | None") -> "PairedState":
        """Return the beliefs of all layers after the last time."""
        return self._run(self.inputs(batch), batch, state)[2]

    def _run(
        self, values: Tensor, batch: BatchLike, state: "PairedState | None"
    ) -> tuple[Tensor, Tensor | None, "PairedState"]:
        """Return the residual stream, the means of the feature pairs, and the state after the last time."""
        x, feature_mean, bank = self.stem(values, batch, None if state is None else state.bank)
        after = []
        for number, block in enumerate(cast(Iterable[PairedBlock], self.blocks)):
            x, belief = block.run(x, batch.times, batch.observed, None if state is None else state.blocks[number])
            after.append(belief)
        return x, feature_mean, PairedState(bank, tuple(after))

    def _predict(
        self, values: Tensor, batch: BatchLike, state: "PairedState | None" = None, intermediates: bool = False
    ) -> Prediction:
        x, feature_mean, _ = self._run(values, batch, state)
        mean, var = self.output(x, valid=batch.valid)
        if isinstance(self.stem, FeatureStem) and feature_mean is not None and var is not None:
            mean, var = self.stem.unscale(feature_mean + mean, var)
        return Prediction(mean, var, {"stream": x} if intermediates else {})

    def _draw_jitter(self, like: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a scale for each series and feature, and an offset for some of them.

        The feature pairs then also follow a feature whose level or unit differs from the training set.
        """
        drawn = torch.rand_like(like) < CONSTANTS.shifted_share
        offset = torch.where(drawn, CONSTANTS.shift * self.config.jitter * unit * torch.randn_like(like), 0.0)
        return torch.exp(self.config.jitter * torch.randn_like(like)), offset

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """Compute the likelihood of the targets that are not inputs, if there are any.

        Targets that are also inputs are easy to predict. Their variance near 0 would dominate the loss. Each term is
        weighted by its detached variance to the power of ``beta`` (Seitzer et al. 2022). Uncertain targets then keep
        their influence on the mean.
        """
        if self.spec.likelihood == "bernoulli":
            return super().loss(batch, progress=progress)
        values, targets, counted, unit = self.inputs(batch), self.targets(batch), batch.target_mask, torch.ones(())
        if isinstance(self.stem, FeatureStem) and self.spec.targets_are_inputs:
            hidden = counted & ~batch.mask
            counted, unit = hidden if bool(hidden.any()) else counted, self.stem.scale
            if self.training and self.config.jitter:
                factor, offset = self._draw_jitter(values[:, :1], unit)
                values, targets = values * factor + offset, targets * factor + offset
        mean, var = cast(tuple[Tensor, Tensor], self._predict(values, batch)[:2])
        weight = (var.detach() / unit.square()) ** self.config.beta
        return mean_over_times(gaussian_nll(targets, mean, var, counted, weight), counted)


class PairedState(NamedTuple):
    """The state after a time: the beliefs of the feature pairs (empty for images) and those of the stack."""

    bank: Belief | tuple[()]
    blocks: tuple[BlockState, ...]


class PairedSmootherModel(PairedModel):
    """A stack of paired smoothers: every layer is conditioned on the complete series."""

    causal: ClassVar[bool] = False
    _advance = Model._advance  # no streaming
    smooth: ClassVar[bool] = True


class ImageStem(nn.Module):
    """Initial residual stream of images: the features of the encoder, 0 without an image."""

    def __init__(self, spec: Spec, config: PairedConfig) -> None:
        super().__init__()
        self.encoder = make_encoder(spec) if config.encoder is None else config.encoder
        self.enter = nn.Linear(features_of(self.encoder, spec.input_shape), config.width)

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Do nothing: images need no statistics."""

    def forward(
        self, values: Tensor, batch: BatchLike, state: tuple[()] | None = None
    ) -> tuple[Float[Tensor, "batch time width"], None, tuple[()]]:
        """Return the residual stream, no feature means, and an empty state. ``state`` has no effect."""
        return apply_where(nn.Sequential(self.encoder, self.enter), values, batch.observed), None, ()


class FeatureStem(nn.Module):
    """Initial residual stream of features: the encoded observations plus the beliefs of the feature pairs."""

    centre: Tensor
    scale: Tensor

    def __init__(self, spec: Spec, config: PairedConfig, **options: Any) -> None:
        super().__init__()
        count = spec.input_size
        self.register_buffer("centre", torch.zeros(count))
        self.register_buffer("scale", torch.ones(count))
        self.encoder = _mlp(2 * count, config.width) if config.encoder is None else config.encoder
        self.enter = nn.Linear(features_of(self.encoder, (2 * count,)), config.width)
        self.bank = FeatureBank(count, config.copies, **options)
        self.mix = GatedUnit(config.copies * count, config.width, config.dropout)
        weights = torch.zeros(config.copies, count)
        weights[0] = 1.0  # the level
        self.weights = nn.Parameter(weights) if spec.targets_are_inputs else None

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Compute mean and standard deviation of each feature."""
        mean, std = feature_moments(batches)
        self.centre.copy_(mean)
        self.scale.copy_(std)

    def unscale(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Convert standardised moments to the unit of the data."""
        return self.centre + self.scale * mean, self.scale.square() * (var + CONSTANTS.variance_floor)

    def forward(
        self, values: Float[Tensor, "batch time feature"], batch: BatchLike, state: Belief | None = None
    ) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time feature"] | None, Belief]:
        """Return the residual stream, the weighted mean of the pairs of each feature, and the last belief.

        The weighted mean is None if the targets are not the inputs.

        Args:
            values: the inputs.
            batch: the batch, with the times and the mask.
            state: the belief of the feature pairs to continue from.
        """
        mask = batch.mask
        standard = torch.where(mask, (values - self.centre) / self.scale, 0.0)
        belief = self.bank(standard, mask, batch.times, state)
        given = torch.cat([standard.clamp(-MAX_DEVIATION, MAX_DEVIATION), mask.to(standard)], -1)
        read = apply_where(nn.Sequential(self.encoder, self.enter), given, batch.observed)
        stream = read + self.mix(belief._replace(mean=belief.mean.clamp(-MAX_DEVIATION, MAX_DEVIATION)))
        if self.weights is None:
            return stream, None, belief.at(-1)
        uppers = belief.mean.chunk(2, -1)[0].unflatten(-1, (self.bank.copies, -1))
        return stream, (self.weights * uppers).sum(-2), belief.at(-1)


def _mlp(size: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, hidden), nn.GELU())


def _head(width: int, output: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), *_mlp(width, width), nn.Linear(width, output))
