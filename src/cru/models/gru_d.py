"""The model GRU-D (Che et al. 2018): time scaled to [0, 1], missing inputs decay to the means of the training set."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from cru.layers.gru_d import GRUD
from cru.layers.ode_rnn import GRUUpdate
from cru.models.base import BatchLike, Prediction, Spec
from cru.models.baseline import BaselineConfig, BaselineModel, state_output, unit_times
from cru.models.fixed_noise import FixedNoiseConfig, FixedNoiseModel
from cru.models.statistics import feature_moments


@dataclass(frozen=True, kw_only=True)
class GRUDConfig(BaselineConfig, FixedNoiseConfig):
    """Options of GRU-D. The paper uses a learning rate of 0.01 with a decay of 0.999.

    The presets apply this decay at each step, down to a tenth of the learning rate.
    """

    units: int = 100  # hidden units of the gates

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("units")


class GRUDModel(BaselineModel, FixedNoiseModel):
    """GRU with trained decay of the inputs to their empirical means, and of the state to 0.

    `prepare` computes the means. Two decoders compute mean and variance. For images, the inputs are latent
    observations, which decay to 0, because they have no mean before training. The paper has no result for images.
    """

    Config: ClassVar[type] = GRUDConfig
    config: GRUDConfig

    def __init__(self, spec: Spec, config: GRUDConfig) -> None:
        super().__init__(spec, config)
        state = config.state_size(spec)
        cell = GRUUpdate(2 * self.latent_size, state, config.units)
        self.layer = GRUD(self.latent_size, state, cell=cell)
        self.output = state_output(spec, config, config.units)

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Compute the mean of each feature over its observations, or 0 without observations."""
        if not isinstance(self.encoder, nn.Flatten):
            return
        self.layer.mean.copy_(feature_moments(batches)[0])

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Compute one step for each time point, then decode every state."""
        x, mask = self.observations(batch)
        states = self.layer(x, mask, unit_times(batch, self.spec))
        mean, var = self.output(states, valid=batch.valid)
        return Prediction(mean, var, {"states": states} if intermediates else {})
