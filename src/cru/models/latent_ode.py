"""Latent ODE as a model (Rubanova et al. 2019): a variational autoencoder whose code is where an ODE starts."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cru.layers.ode import ODE, tanh_field
from cru.layers.ode_rnn import ODERNN, GRUUpdate
from cru.layers.ragged import Ragged
from cru.models.base import BatchLike, Prediction, Spec
from cru.models.baseline import BaselineModel, SolverConfig, state_output
from cru.models.variational import Code, VariationalConfig, VariationalModel


@dataclass(frozen=True, kw_only=True)
class LatentODEConfig(SolverConfig, VariationalConfig):
    """Sizes of appendix D. The paper trained it at 0.01 with a decay of 0.999, which the presets take for each
    step, down to a tenth."""

    recognition_size: int = 40  # state of the recognition network
    units: int = 50  # of both ODE functions, the gates, and the network before the code
    layers: int = 5  # linear maps in both ODE functions: "3 layers" of the paper, and one map in and one out

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("recognition_size", "units", "layers")


class LatentODEModel(BaselineModel, VariationalModel):
    """An ODE-RNN reads the series backward in time; its last state gives q(z_0), z_0 at the series' first time.

    From there a second ODE runs forward and is decoded at every time. The recognition starts at the last observation.
    """

    Config: ClassVar[type] = LatentODEConfig
    config: LatentODEConfig

    def __init__(self, spec: Spec, config: LatentODEConfig) -> None:
        super().__init__(spec, config)
        size, hidden, units = config.state_size(spec), config.recognition_size, config.units

        def ode(state: int) -> ODE:
            return ODE(tanh_field(state, units, config.layers), **config.solving)  # type: ignore[arg-type]

        self.recognition = ODERNN(ode(hidden), GRUUpdate(2 * self.latent_size, hidden, units), hidden)
        self.to_code = nn.Sequential(nn.Linear(hidden, units), nn.Tanh(), nn.Linear(units, 2 * size))
        self.generator = ode(size)
        self.output = state_output(spec, config, None)

    def encode(self, batch: BatchLike) -> Code:
        """q(z_0), from the last observation back to the first time."""
        x, mask = self.observations(batch)
        inputs = torch.cat([x, mask.to(x.dtype)], -1)
        state = self.recognition.backward_in_time(inputs, self.unit_gaps(batch), batch.observed)
        return Code.split(self.to_code(state))

    def decode(self, code: Tensor, batch: BatchLike) -> Prediction:
        """Follow the ODE from ``code`` at the first time through all others."""
        delta = self.unit_gaps(batch)
        plan = Ragged.of(delta > 0)
        state, states = code.index_select(0, plan.order), []
        for t, gap in enumerate(plan.steps(delta)):
            state = self.generator(state[: len(gap)], gap) if t > 0 else state
            states.append(state)
        return Prediction(*self.output(plan.join(states), valid=batch.valid))

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Decode the mean of the code, and on request count the evaluations of both ODE functions for that."""
        odes = (self.recognition.ode, self.generator)
        for ode in odes:
            ode.evaluations = 0
        prediction = super().forward(batch, intermediates=intermediates)
        if not intermediates:
            return prediction
        per_decoding = self.generator.evaluations // (1 + self.config.samples)
        count = self.recognition.ode.evaluations + per_decoding
        return prediction._replace(intermediates={**prediction.intermediates, "evaluations": count})
