"""The paired CRU in depth: an encoder, a stack of paired filters with gated units between them, a decoder."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from cru.functional import Belief
from cru.functional.likelihood import gaussian_nll, mean_over_times
from cru.layers.encoders import apply_where, features_of
from cru.layers.paired_block import MAX_DEVIATION, BlockState, FeatureBank, Mix, PairedBlock
from cru.models.base import BatchLike, Model, Prediction, Spec
from cru.models.config import ModelConfig
from cru.models.networks import default_variance_map, make_decoder, make_encoder, make_variance_decoder
from cru.models.output_head import OutputHead
from cru.models.statistics import feature_moments
from cru.shapes import Float


@dataclass(frozen=True)
class PairedConstants:
    """Fixed numbers of the paired models."""

    shifted_share: float = 0.2  # share of the features that jitter shifts far away
    shift: float = 100.0  # size of that shift at jitter = 1, in standard deviations
    variance_floor: float = 0.01  # of a standardised feature: a zero-inflated feature is never certain


CONSTANTS = PairedConstants()


@dataclass(frozen=True, kw_only=True)
class PairedConfig(ModelConfig):
    """Sizes of the stack."""

    layers: int = 2
    pairs: int = 32  # of each layer
    width: int = 64  # of the stream between the layers
    copies: int = 2  # pairs that watch each feature by itself; pictures have none
    modulated: bool = False  # what was read last moves decay and frequency of each pair
    dropout: float = 0.0
    jitter: float = 0.0  # in training each series has its features multiplied by exp(jitter · normal), some moved far
    beta: float = 0.5  # of the loss: 0 is the likelihood, 1 trains the mean as the squared error does
    encoder: nn.Module | None = field(default=None, repr=False)  # (n, *picture) or (n, [features, mask]) -> (n, any)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("layers", "pairs", "width", "copies")
        self.check_shares("dropout")
        self.check_not_negative("beta", "jitter")


class PairedModel(Model):
    """Each layer filters what the one below made of the readings, exactly, and mixes the channels afterwards.

    Vectors are standardised by the training set, and each feature has pairs of its own (`FeatureBank`), whose means are
    added to the output.
    """

    Config: ClassVar[type] = PairedConfig
    smooth: ClassVar[bool] = False
    config: PairedConfig

    def __init__(self, spec: Spec, config: PairedConfig) -> None:
        super().__init__(spec, config)
        span = (spec.time_end - spec.time_start) * spec.time_scale or 1.0
        options: dict[str, Any] = {"span": span, "time_scale": spec.time_scale, "smooth": self.smooth}
        self.stem: PictureStem | FeatureStem
        self.stem = PictureStem(spec, config) if spec.is_image else FeatureStem(spec, config, **options)
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
        """Mean and standard deviation of each feature."""
        self.stem.prepare(batches)

    def forward(
        self, batch: BatchLike, *, state: "PairedState | None" = None, intermediates: bool = False
    ) -> Prediction:
        """Through the stack, then decode at every time."""
        return self._predict(self.inputs(batch), batch, state, intermediates)

    def _advance(self, batch: BatchLike, state: "PairedState | None") -> "PairedState":
        """The beliefs of all layers after the last time."""
        return self._run(self.inputs(batch), batch, state)[2]

    def _run(
        self, values: Tensor, batch: BatchLike, state: "PairedState | None"
    ) -> tuple[Tensor, Tensor | None, "PairedState"]:
        """The stream and what the features' own pairs say, at every time, and the state after the last."""
        x, echo, bank = self.stem(values, batch, None if state is None else state.bank)
        after = []
        for number, block in enumerate(cast(Iterable[PairedBlock], self.blocks)):
            x, belief = block.run(x, batch.times, batch.observed, None if state is None else state.blocks[number])
            after.append(belief)
        return x, echo, PairedState(bank, tuple(after))

    def _predict(
        self, values: Tensor, batch: BatchLike, state: "PairedState | None" = None, intermediates: bool = False
    ) -> Prediction:
        x, echo, _ = self._run(values, batch, state)
        mean, var = self.output(x, valid=batch.valid)
        if isinstance(self.stem, FeatureStem) and echo is not None and var is not None:
            mean, var = self.stem.restored(echo + mean, var)
        return Prediction(mean, var, {"stream": x} if intermediates else {})

    def _moved(self, like: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """A scale for each series and feature and, for one in five, another level: so that a feature which is measured
        otherwise than in training is still followed by its own pairs."""
        drawn = torch.rand_like(like) < CONSTANTS.shifted_share
        offset = torch.where(drawn, CONSTANTS.shift * self.config.jitter * unit * torch.randn_like(like), 0.0)
        return torch.exp(self.config.jitter * torch.randn_like(like)), offset

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """The likelihood of what was not shown, where anything was not: repeating a reading is easy, and a variance
        near 0 there would outweigh all else.

        Each term is weighted with its own variance to the power of ``beta``, through which no gradient flows (Seitzer
        et al. 2022): so what is uncertain keeps a say in the training of the mean.
        """
        if self.spec.likelihood == "bernoulli":
            return super().loss(batch, progress=progress)
        values, targets, counted, unit = self.inputs(batch), self.targets(batch), batch.target_mask, torch.ones(())
        if isinstance(self.stem, FeatureStem) and self.spec.targets_are_inputs:
            hidden = counted & ~batch.mask
            counted, unit = hidden if bool(hidden.any()) else counted, self.stem.scale
            if self.training and self.config.jitter:
                factor, offset = self._moved(values[:, :1], unit)
                values, targets = values * factor + offset, targets * factor + offset
        mean, var = cast(tuple[Tensor, Tensor], self._predict(values, batch)[:2])
        weight = (var.detach() / unit.square()) ** self.config.beta
        return mean_over_times(gaussian_nll(targets, mean, var, counted, weight), counted)


class PairedState(NamedTuple):
    """What is known after a time: beliefs about each feature by itself (none of pictures), and those of the stack."""

    bank: Belief | tuple[()]
    blocks: tuple[BlockState, ...]


class PairedSmootherModel(PairedModel):
    """The same with the exact smoother in every layer: each time knows the whole series."""

    causal: ClassVar[bool] = False
    _advance = Model._advance  # which says that this is not possible
    smooth: ClassVar[bool] = True


class PictureStem(nn.Module):
    """The stream at the start: the encoder's features, nothing where there is no picture."""

    def __init__(self, spec: Spec, config: PairedConfig) -> None:
        super().__init__()
        self.encoder = make_encoder(spec) if config.encoder is None else config.encoder
        self.enter = nn.Linear(features_of(self.encoder, spec.input_shape), config.width)

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Nothing."""

    def forward(
        self, values: Tensor, batch: BatchLike, state: tuple[()] | None = None
    ) -> tuple[Float[Tensor, "batch time width"], None, tuple[()]]:
        """The stream; there is nothing to repeat, and nothing to go on from."""
        return apply_where(nn.Sequential(self.encoder, self.enter), values, batch.observed), None, ()


class FeatureStem(nn.Module):
    """The stream at the start: what is read, and what the features' own pairs make of it; and their means."""

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
        self.mix = Mix(config.copies * count, config.width, config.dropout)
        weights = torch.zeros(config.copies, count)
        weights[0] = 1.0  # the level
        self.weights = nn.Parameter(weights) if spec.targets_are_inputs else None

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Mean and standard deviation of each feature."""
        mean, std = feature_moments(batches)
        self.centre.copy_(mean)
        self.scale.copy_(std)

    def restored(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """From standardised features to the data's own units."""
        return self.centre + self.scale * mean, self.scale.square() * (var + CONSTANTS.variance_floor)

    def forward(
        self, values: Float[Tensor, "batch time feature"], batch: BatchLike, state: Belief | None = None
    ) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time feature"] | None, Belief]:
        """The stream, a weighted mean of each feature's pairs where those are to be predicted, and the last belief."""
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
