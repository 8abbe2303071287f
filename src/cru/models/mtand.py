"""The model mTAND (Shukla and Marlin 2021): attention from the observations to reference times, and back."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from cru.layers.time_attention import TimeAttention, TimeEmbedding
from cru.models.base import BatchLike, OutputHead, Prediction, Spec
from cru.models.baseline import unit_times
from cru.models.networks import default_state_size
from cru.models.variational import LatentDistribution, VariationalConfig, VariationalModel, kl_weight
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class MTANDConfig(VariationalConfig):
    """Options of mTAND: the sizes of its authors for PhysioNet, with the 10 hidden units of appendix D.

    The presets use a learning rate of 0.001.
    """

    hidden_size: int | None = None  # M, size of the code at each reference point; None: 30 for images, 20 otherwise
    units: int = 10  # of the GRUs of encoder and decoder, in each direction
    dense_units: int = 50  # hidden units of the networks before the code and at the output
    reference_points: int = 64
    samples: int = 5  # k of the importance-weighted bound
    embedding: int = 128  # size of the time embeddings
    num_heads: int = 1
    full: bool | None = None  # autoencoder (True) or encoder only (False); None: autoencoder unless for a regression
    variance_map: str = "softplus"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size is not None:
            self.check_counts("hidden_size")
        self.check_counts("units", "dense_units", "reference_points", "embedding", "num_heads")


class MTANDModel(VariationalModel):
    """A multi-time attention network.

    Time attention interpolates the series at 64 reference points. Their features are the inputs of a bidirectional GRU.
    A second time attention interpolates its states at the times of the batch. Images are raw pixels in inputs and
    predictions.

    mTAND-Full has a Gaussian code of size M at each reference point between two such GRUs. Its loss is the
    importance-weighted bound (Burda et al. 2016). mTAND-Enc has no code, and its loss is the likelihood.
    """

    Config: ClassVar[type] = MTANDConfig
    config: MTANDConfig
    reference: Tensor

    def __init__(self, spec: Spec, config: MTANDConfig) -> None:
        super().__init__(spec, config)
        self.full = spec.targets_are_inputs if config.full is None else config.full
        size = default_state_size(spec) if config.hidden_size is None else config.hidden_size
        both = 2 * config.units
        self.register_buffer("reference", torch.linspace(0, 1, config.reference_points), persistent=False)

        self.embed_input = TimeEmbedding(config.embedding)
        attention = partial(TimeAttention, embedding=config.embedding, num_heads=config.num_heads)
        self.read_input = attention(2 * spec.input_size, config.units)
        self.encoder = nn.GRU(config.units, config.units, bidirectional=True, batch_first=True)

        if self.full:
            self.to_code = _dense(both, config.dense_units, 2 * size)
            self.decoder = nn.GRU(size, config.units, bidirectional=True, batch_first=True)
        self.embed_output = TimeEmbedding(config.embedding)
        self.read_output = attention(both, both)
        mean, variance = (_dense(both, config.dense_units, spec.target_size) for _ in range(2))
        self.output = OutputHead(spec, mean, variance, config.variance_map)

    def summarise(self, batch: BatchLike) -> Float[Tensor, "batch reference units"]:
        """Compute the states of the encoder at the reference points."""
        x = self.inputs(batch).flatten(2)
        mask = batch.mask.expand_as(batch.values).flatten(2)
        times = self.embed_input(unit_times(batch, self.spec).to(x.dtype))
        read = self.read_input(
            self.embed_input(self.reference)[None],
            times,
            torch.cat([x, mask.to(x.dtype)], -1),
            torch.cat([mask, mask], -1),
        )
        states: Tensor = self.encoder(read)[0]
        return states

    def encode(self, batch: BatchLike) -> LatentDistribution:
        """Compute q(z) at the reference points."""
        return LatentDistribution.split(self.to_code(self.summarise(batch)))

    def decode(self, code: Tensor, batch: BatchLike) -> Prediction:
        """Apply the decoder to the reference points, then predict at the times of ``batch``."""
        return self.read(self.decoder(code)[0], batch)

    def read(self, states: Float[Tensor, "batch reference units"], batch: BatchLike) -> Prediction:
        """Interpolate the states from the reference points at the times of ``batch``, and decode them."""
        times = self.embed_output(unit_times(batch, self.spec).to(states.dtype))
        found = self.read_output(times, self.embed_output(self.reference)[None], states)
        return Prediction(*self.output(found, valid=batch.valid))

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Decode the mean of the code (Full) or the states of the encoder (Enc)."""
        if self.full:
            return super().forward(batch, intermediates=intermediates)
        return self.read(self.summarise(batch), batch)

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """Compute the importance-weighted bound (Full) or the likelihood (Enc).

        With draws z_1 ... z_k of the code, the bound is -log 1/k Σ p(targets | z) (p(z) / q(z))^weight of each series,
        divided by its number of targets. The loss of the predicted variance is added.
        """
        if not self.full:
            return self.fixed_noise_nll(self(batch), batch)
        code, weight = self.encode(batch), kl_weight(progress, self.config.annealing)
        draws = [code.sample() for _ in range(self.config.samples)]
        predictions = [self.decode(draw, batch) for draw in draws]
        logs = [self.fixed_log_likelihood(prediction, batch) for prediction in predictions]
        ratios = [code.log_ratio(draw) for draw in draws]
        terms = torch.stack([log + weight * ratio for log, ratio in zip(logs, ratios, strict=True)])
        bound = terms.logsumexp(0) - math.log(len(draws))
        counts = batch.target_mask.expand_as(batch.targets).flatten(1).sum(1)
        series = counts > 0
        mean = torch.where(series, bound / counts.clamp(min=1), 0.0).sum() / series.sum().clamp(min=1)
        variances = torch.stack([self.variance_nll(prediction, batch) for prediction in predictions]).mean()
        points = batch.target_mask.flatten(2).any(-1).sum()  # from a mean over time points to one over targets
        return variances * points / counts.sum().clamp(min=1) - mean


def _dense(inputs: int, units: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, outputs))
