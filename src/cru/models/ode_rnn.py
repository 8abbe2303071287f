"""The model ODE-RNN (Rubanova et al. 2019), with time scaled to [0, 1]."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cru.layers.ode import ODE, tanh_field
from cru.layers.ode_rnn import ODERNN, GRUUpdate
from cru.models.base import BatchLike, Prediction, Spec
from cru.models.baseline import BaselineModel, SolverConfig, state_output
from cru.models.fixed_noise import FixedNoiseConfig, FixedNoiseModel
from cru.models.recurrent import RecurrentModel, RecurrentState
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class ODERNNConfig(SolverConfig, FixedNoiseConfig):
    """Options of ODE-RNN. The paper uses a learning rate of 0.01 with a decay of 0.999.

    The presets apply this decay at each step, down to a tenth of the learning rate.
    """

    units: int = 100  # hidden units of the ODE function, the gates and the decoder
    layers: int = 3  # linear layers of the ODE function

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("units", "layers")


class ODERNNModel(RecurrentModel, BaselineModel, FixedNoiseModel):
    """A model with an ODE over each gap and a GRU at each observation. Two decoders compute mean and variance."""

    Config: ClassVar[type] = ODERNNConfig
    config: ODERNNConfig

    def __init__(self, spec: Spec, config: ODERNNConfig) -> None:
        super().__init__(spec, config)
        state = config.state_size(spec)
        ode = ODE(tanh_field(state, config.units, config.layers), **config.solver_options)  # type: ignore[arg-type]
        self.layer = ODERNN(ode, GRUUpdate(2 * self.latent_size, state, config.units), state)
        self.output = state_output(spec, config, config.units)

    def run(self, batch: BatchLike, state: RecurrentState | None = None) -> Float[Tensor, "batch time state"]:
        """Compute the state at every time point."""
        x, mask = self.observations(batch)
        self.layer.ode.evaluations = 0
        start = None if state is None else state.value
        delta = self.unit_gaps(batch, state)
        states: Tensor = self.layer(torch.cat([x, mask.to(x.dtype)], -1), delta, batch.observed, start)
        return states

    def forward(
        self, batch: BatchLike, *, state: RecurrentState | None = None, intermediates: bool = False
    ) -> Prediction:
        """Decode the state at every time. On request, count the calls of the ODE function.

        Args:
            batch: the batch.
            state: the state to continue from.
            intermediates: whether to return states and the number of calls, too.
        """
        prediction = super().forward(batch, state=state, intermediates=intermediates)
        more = {**prediction.intermediates, "evaluations": self.layer.ode.evaluations}
        return prediction._replace(intermediates=more if intermediates else {})
