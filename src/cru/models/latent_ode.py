"""The model Latent ODE (Rubanova et al. 2019): a variational autoencoder whose code is the initial state of an ODE."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cru.layers.ode import ODE, tanh_field
from cru.layers.ode_rnn import ODERNN, GRUUpdate
from cru.layers.ragged import Ragged
from cru.models.base import BatchLike, Prediction, Spec
from cru.models.baseline import BaselineModel, SolverConfig, state_output
from cru.models.variational import LatentDistribution, VariationalConfig, VariationalModel


@dataclass(frozen=True, kw_only=True)
class LatentODEConfig(SolverConfig, VariationalConfig):
    """Options of Latent ODE, with the sizes of appendix D. The paper uses a learning rate of 0.01 with decay 0.999.

    The presets apply this decay at each step, down to a tenth of the learning rate.
    """

    recognition_size: int = 40  # state of the recognition network
    units: int = 50  # hidden units of both ODE functions, the gates, and the network before the code
    layers: int = 5  # linear maps in both ODE functions: the "3 layers" of the paper, one before and one after

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("recognition_size", "units", "layers")


class LatentODEModel(BaselineModel, VariationalModel):
    """A model in which an ODE-RNN backward in time computes q(z_0), the distribution of the code at the first time.

    A second ODE is solved forward from z_0, and a decoder maps its state to a prediction at every time. The ODE-RNN
    starts at the last observation.
    """

    Config: ClassVar[type] = LatentODEConfig
    config: LatentODEConfig

    def __init__(self, spec: Spec, config: LatentODEConfig) -> None:
        super().__init__(spec, config)
        size, hidden, units = config.state_size(spec), config.recognition_size, config.units

        def ode(state: int) -> ODE:
            return ODE(tanh_field(state, units, config.layers), **config.solver_options)  # type: ignore[arg-type]

        self.recognition = ODERNN(ode(hidden), GRUUpdate(2 * self.latent_size, hidden, units), hidden)
        self.to_code = nn.Sequential(nn.Linear(hidden, units), nn.Tanh(), nn.Linear(units, 2 * size))
        self.generator = ode(size)
        self.output = state_output(spec, config, None)

    def encode(self, batch: BatchLike) -> LatentDistribution:
        """Compute q(z_0), from the last observation back to the first time."""
        x, mask = self.observations(batch)
        inputs = torch.cat([x, mask.to(x.dtype)], -1)
        state = self.recognition.backward_in_time(inputs, self.unit_gaps(batch), batch.observed)
        return LatentDistribution.split(self.to_code(state))

    def decode(self, code: Tensor, batch: BatchLike) -> Prediction:
        """Solve the ODE from ``code`` at the first time, and decode its state at every time."""
        delta = self.unit_gaps(batch)
        plan = Ragged.of(delta > 0)
        state, states = code.index_select(0, plan.order), []
        for t, gap in enumerate(plan.steps(delta)):
            state = self.generator(state[: len(gap)], gap) if t > 0 else state
            states.append(state)
        return Prediction(*self.output(plan.join(states), valid=batch.valid))

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Decode the mean of the code. On request, count the calls of both ODE functions."""
        odes = (self.recognition.ode, self.generator)
        for ode in odes:
            ode.evaluations = 0
        prediction = super().forward(batch, intermediates=intermediates)
        if not intermediates:
            return prediction
        per_decoding = self.generator.evaluations // (1 + self.config.samples)
        count = self.recognition.ode.evaluations + per_decoding
        return prediction._replace(intermediates={**prediction.intermediates, "evaluations": count})
