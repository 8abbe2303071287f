"""GRU and GRU-Δt (section 4.2): a gated recurrent unit with one step per time point."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from cru.functional import gaps
from cru.layers.encoders import apply_where, features_of
from cru.models.base import BatchLike, ModelConfig, OutputHead, Spec
from cru.models.networks import default_variance_map, latent_encoder, make_decoder, make_variance_decoder
from cru.models.recurrent import RecurrentModel, RecurrentState
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class GRUConfig(ModelConfig):
    """Options of GRU and GRU-Δt. None means the choice of the paper for this kind of data."""

    hidden_size: int = 75
    variance_map: str | None = None  # None: elu+1 for images, otherwise square
    encoder: nn.Module | None = field(default=None, repr=False)  # None: that of the CRU for images, otherwise none
    decoder: nn.Module | None = field(default=None, repr=False)  # None: that of the CRU for images, else linear
    variance_decoder: nn.Module | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("hidden_size")


class GRUModel(RecurrentModel):
    """`torch.nn.GRU` with one step per time point. Missing values enter as 0.

    For images, it has the encoder and decoder of the CRU, and its inputs are latent observations. Otherwise, its inputs
    are the features, and its outputs are linear. With 75 units it then has about as many parameters as the CRU.
    """

    Config: ClassVar[type] = GRUConfig
    time_aware: ClassVar[bool] = False

    def __init__(self, spec: Spec, config: GRUConfig) -> None:
        super().__init__(spec, config)
        self.encoder = latent_encoder(spec) if config.encoder is None else config.encoder
        inputs, state = features_of(self.encoder, spec.input_shape), config.hidden_size
        self.layer = nn.GRU(inputs + self.time_aware, state, batch_first=True)
        mean, variance, variance_map = config.decoder, config.variance_decoder, config.variance_map
        if mean is None:
            mean = make_decoder(spec, state) if spec.is_image else nn.Linear(state, spec.target_size)
        if variance is None:
            variance = make_variance_decoder(spec, state) if spec.is_image else nn.Linear(state, spec.target_size)
        self.output = OutputHead(
            spec, mean, variance, default_variance_map(spec) if variance_map is None else variance_map
        )

    def run(self, batch: BatchLike, state: RecurrentState | None = None) -> Float[Tensor, "batch time state"]:
        """Compute the state at each time point."""
        x = apply_where(self.encoder, self.inputs(batch), batch.observed)
        if self.time_aware:
            since = None if state is None else state.time
            delta = gaps(self.elapsed(batch, state), since, self.spec.time_scale, x.dtype)
            x = torch.cat([x, delta[..., None]], -1)
        states: Tensor = self.layer(x, None if state is None else state.value[None])[0]
        return states


class GRUDeltaModel(GRUModel):
    """GRU-Δt: the gap since the previous time is an additional input."""

    time_aware: ClassVar[bool] = True
