"""The Kalman family: encoder, continuous-discrete Kalman filter in the latent space, decoder (Sec. 3.1, fig. 1)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from cru.layers import CRU, RKN, FastCRU, KalmanLayer
from cru.layers.encoders import encode_observed, features_of
from cru.models.base import Batch, Model, Prediction, Spec
from cru.models.networks import (
    default_state_size,
    default_variance_map,
    make_decoder,
    make_encoder,
    make_variance_decoder,
)
from cru.models.output import Output


@dataclass(frozen=True, kw_only=True)
class KalmanConfig:
    """What the family shares. None takes what the paper took for this kind of data."""

    hidden_size: int | None = None  # M; None: 30 for pictures, 20 otherwise
    num_basis: int = 15  # K; 20 on PhysioNet
    noise_map: str = "softplus"  # process noise; the published USHCN and PhysioNet runs took relu
    observation_map: str | None = None  # variance of a latent observation; None: elu+1 for pictures, else square
    variance_map: str | None = None  # variance of the output; None: as above; the published runs took exp for square
    encoder: nn.Module | None = field(default=None, repr=False)  # (n, *input) -> (n, features)
    decoder: nn.Module | None = field(default=None, repr=False)  # (n, M) -> (n, *target), raw
    variance_decoder: nn.Module | None = field(default=None, repr=False)  # (n, 3 M / 2) -> (n, *target), raw


@dataclass(frozen=True, kw_only=True)
class BandedConfig(KalmanConfig):
    """And of those with banded basis matrices."""

    bandwidth: int = 3  # 10 on PhysioNet


class KalmanModel(Model):
    """Latent observations from an encoder, filtered; the mean is decoded from the posterior mean, the variance from
    the posterior covariance. A leaf says which layer it is."""

    Config: ClassVar[type] = BandedConfig
    config: KalmanConfig

    def __init__(self, spec: Spec, config: KalmanConfig) -> None:
        super().__init__(spec, config)
        state = config.hidden_size or default_state_size(spec)
        own_map = default_variance_map(spec)
        self.encoder = config.encoder or make_encoder(spec)
        self.layer = self.make_layer(
            features_of(self.encoder, spec.input_shape),
            state,
            num_basis=config.num_basis,
            time_scale=spec.time_scale,
            noise_map=config.noise_map,
            variance_map=config.observation_map or own_map,
        )
        self.output = Output(
            spec,
            config.decoder or make_decoder(spec, state),
            config.variance_decoder or make_variance_decoder(spec, 3 * state // 2),
            config.variance_map or own_map,
        )

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """The layer of this member of the family."""
        raise TypeError("KalmanModel is a base class: use cru.models.create")

    def forward(self, batch: Batch, *, intermediates: bool = False) -> Prediction:
        """Filter, then decode every posterior."""
        observed = batch.observed
        features = encode_observed(self.encoder, self.inputs(batch), observed)
        y, y_var = self.layer.observe(features)  # eq. 2
        result = self.layer.filter(y, y_var, batch.times, observed)
        posterior = result.posterior
        spread = torch.cat([posterior.upper, posterior.lower, posterior.side], -1)
        mean, var = self.output(posterior.mean, spread, valid=batch.valid)
        return Prediction(mean, var, result._asdict() if intermediates else {})


class CRUModel(KalmanModel):
    """The Continuous Recurrent Unit between encoder and decoder."""

    config: BandedConfig

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """`cru.layers.CRU`."""
        return CRU(input_size, hidden_size, bandwidth=self.config.bandwidth, **options)


class FastCRUModel(KalmanModel):
    """The f-CRU between encoder and decoder."""

    Config: ClassVar[type] = KalmanConfig

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """`cru.layers.FastCRU`."""
        return FastCRU(input_size, hidden_size, **options)


class RKNModel(KalmanModel):
    """The Recurrent Kalman Network: one discrete transition a step, whatever the gap."""

    config: BandedConfig
    time_aware: ClassVar[bool] = False

    def make_layer(self, input_size: int, hidden_size: int, **options: Any) -> KalmanLayer:
        """`cru.layers.RKN`."""
        bandwidth = self.config.bandwidth
        return RKN(input_size, hidden_size, bandwidth=bandwidth, time_aware=self.time_aware, **options)


class RKNDeltaModel(RKNModel):
    """RKN-Δt: the gap to the next time is one more input of the network that weighs the bases."""

    time_aware: ClassVar[bool] = True
