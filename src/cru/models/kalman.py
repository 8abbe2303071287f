"""Models of the Kalman family: encoder, Kalman filter in the latent space, decoder (section 3.1, fig. 1)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cru.functional import Belief, FilterResult
from cru.layers import CRU, RKN, FastCRU, KalmanLayer
from cru.layers.encoders import apply_where, features_of
from cru.models.base import BatchLike, Model, ModelConfig, OutputHead, Prediction, Spec
from cru.models.networks import (
    default_state_size,
    default_variance_map,
    make_decoder,
    make_encoder,
    make_variance_decoder,
)
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class KalmanConfig(ModelConfig):
    """Options of the Kalman family. None means the choice of the paper for this kind of data."""

    hidden_size: int | None = None  # M; None: 30 for images, 20 otherwise
    num_basis: int = 15  # K; 20 on PhysioNet
    noise_map: str = "softplus"  # positive map of the process noise; published runs on USHCN and PhysioNet: relu
    observation_map: str | None = None  # of the latent observation variance; None: elu+1 for images, otherwise square
    variance_map: str | None = None  # of the output variance; None: as above; published runs: exp instead of square
    encoder: nn.Module | None = field(default=None, repr=False)  # (n, *input) -> (n, features)
    decoder: nn.Module | None = field(default=None, repr=False)  # (n, M) -> (n, *target), raw
    variance_decoder: nn.Module | None = field(default=None, repr=False)  # (n, 3 M / 2) -> (n, *target), raw

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size is not None:
            self.check_counts("hidden_size")
        self.check_counts("num_basis")


@dataclass(frozen=True, kw_only=True)
class BandedConfig(KalmanConfig):
    """Options of the models with banded basis matrices."""

    bandwidth: int = 3  # 10 on PhysioNet


@dataclass(frozen=True, kw_only=True)
class CRUConfig(BandedConfig):
    """Options of the CRU."""

    coupling: float = 0.0  # initial rotation rate of the halves of the state, in radians per unit of scaled time

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_negative("coupling")


class KalmanModel(Model):
    """Base class of the Kalman family. A subclass makes the layer.

    An encoder computes latent observations, and the layer filters them. One decoder maps the posterior mean to the mean
    of the targets. Another maps the posterior covariance to their variance.
    """

    Config: ClassVar[type] = BandedConfig
    config: KalmanConfig

    def __init__(self, spec: Spec, config: KalmanConfig) -> None:
        super().__init__(spec, config)
        state = default_state_size(spec) if config.hidden_size is None else config.hidden_size
        own_map = default_variance_map(spec)
        self.encoder = make_encoder(spec) if config.encoder is None else config.encoder
        self.layer = self.new_layer(state)
        self.output = OutputHead(
            spec,
            make_decoder(spec, state) if config.decoder is None else config.decoder,
            make_variance_decoder(spec, 3 * state // 2) if config.variance_decoder is None else config.variance_decoder,
            own_map if config.variance_map is None else config.variance_map,
        )

    def new_layer(self, hidden_size: int) -> KalmanLayer:
        """Make a filter on the features of the encoder, with the options of the config."""
        config, own_map = self.config, default_variance_map(self.spec)
        return self.make_layer(
            features_of(self.encoder, self.spec.input_shape),
            hidden_size,
            num_basis=config.num_basis,
            time_scale=self.spec.time_scale,
            noise_map=config.noise_map,
            variance_map=own_map if config.observation_map is None else config.observation_map,
        )

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """Make the layer of this model."""
        raise TypeError("KalmanModel is a base class: use cru.models.create")

    @property
    def dtype(self) -> torch.dtype:
        """The type of the layer."""
        return self.layer.dtype

    def freeze(self) -> None:
        """Compute the transition of the layer once."""
        self.layer.freeze()

    def _advance(self, batch: BatchLike, state: Belief | None) -> Belief:
        """Return the belief after the last time."""
        y, y_var = self.layer.observe(self.encode(batch))
        belief = self.layer.advance(y, y_var, self.elapsed(batch, state), batch.observed, state)
        return belief._replace(time=batch.times[:, -1].clone())  # padding repeats the last time

    def forward(self, batch: BatchLike, *, state: Belief | None = None, intermediates: bool = False) -> Prediction:
        """Filter, then decode every posterior.

        Args:
            batch: the batch.
            state: the belief to continue from.
            intermediates: whether to return priors, posteriors and gains, too.
        """
        result = self.filter(self.encode(batch), batch, state)
        posterior = result.posterior
        spread = torch.cat([posterior.upper, posterior.lower, posterior.side], -1)
        mean, var = self.output(posterior.mean, spread, valid=batch.valid)
        more = {"prior": result.prior, "posterior": posterior, "gain": result.gain} if intermediates else {}
        return Prediction(mean, var, more)

    def encode(self, batch: BatchLike) -> Float[Tensor, "batch time features"]:
        """Encode the inputs at each observed time."""
        return apply_where(self.encoder, self.inputs(batch), batch.observed)

    def filter(
        self, features: Float[Tensor, "batch time features"], batch: BatchLike, state: Belief | None = None
    ) -> FilterResult:
        """Filter the encoded inputs.

        Args:
            features: features of the encoder.
            batch: the batch, with the times and the mask.
            state: the belief to continue from.
        """
        y, y_var = self.layer.observe(features)  # eq. 2
        return self.layer.filter(y, y_var, self.elapsed(batch, state), batch.observed, state)


class CRUModel(KalmanModel):
    """Model with `cru.layers.CRU`, the Continuous Recurrent Unit."""

    Config: ClassVar[type] = CRUConfig
    config: CRUConfig

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """Make a `cru.layers.CRU`."""
        config = self.config
        return CRU(input_size, hidden_size, bandwidth=config.bandwidth, coupling=config.coupling, **options)


class FastCRUModel(KalmanModel):
    """Model with `cru.layers.FastCRU`, the f-CRU."""

    Config: ClassVar[type] = KalmanConfig

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """Make a `cru.layers.FastCRU`."""
        return FastCRU(input_size, hidden_size, **options)


class RKNModel(KalmanModel):
    """Model with `cru.layers.RKN`, the Recurrent Kalman Network: one discrete transition per step."""

    config: BandedConfig
    time_aware: ClassVar[bool] = False

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """Make a `cru.layers.RKN`."""
        bandwidth = self.config.bandwidth
        return RKN(input_size, hidden_size, bandwidth=bandwidth, time_aware=self.time_aware, **options)


class RKNDeltaModel(RKNModel):
    """RKN-Δt: the gap to the next time is an additional input of the network that computes the weights of the bases."""

    time_aware: ClassVar[bool] = True
