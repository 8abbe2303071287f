"""The model GRU-ODE-Bayes (De Brouwer et al. 2019): unscaled times, raw inputs, and a loss with two terms."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cru.errors import InputError
from cru.functional import gaps
from cru.functional.likelihood import summed
from cru.layers.gru_ode import BayesStates, GRUODEBayes, GRUODEField
from cru.layers.observation import BernoulliObservation, GaussianObservation, ObservationModel
from cru.layers.ode import FIXED_SOLVERS, ODE, OPEN_SOLVERS, exponential_time_map, uniform_time_map
from cru.models.base import BatchLike, Prediction, Spec
from cru.models.baseline import BaselineModel, SolverConfig, state_output
from cru.models.recurrent import RecurrentState
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class GRUODEBConfig(SolverConfig):
    """Options of GRU-ODE-Bayes: the sizes of its authors for USHCN, with a state of M (appendix D).

    The presets use a learning rate of 0.001 with a weight decay of 1e-4, and the Euler steps of 0.1 of the authors:
    ``solver="euler", longest=0.1, most_parts=1000``.
    """

    solver: str = "midpoint"  # midpoint and euler use a time map that is stable over any gap
    steps: int = 1  # per part of a gap, for a fixed-step solver
    longest: float = 1.0  # longest part of a gap, in the unit of the times; the relaxation rate is at most 1
    most_parts: int = 16  # largest number of parts of a gap
    train_on_targets: bool = False  # whether the targets are inputs in training, as in forecasts of the authors
    obs_units: int = 25  # hidden units of f_obs, which predicts the inputs from the state
    prep_units: int = 10  # units of f_prep for each feature
    dropout: float = 0.2  # in f_obs
    mixing: float = 1e-4  # weight of the second term of the loss
    noise: float = 0.01  # standard deviation of an observation in the second term

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("obs_units", "prep_units", "most_parts")
        self.check_positive("longest", "noise")
        self.check_not_negative("mixing")
        self.check_shares("dropout")


class GRUODEBModel(BaselineModel):
    """A GRU in continuous time with a Bayesian update.

    If the targets are the inputs, as in interpolation and extrapolation, f_obs of the updated state is the prediction.
    The loss of a series has two terms. The first is the negative log likelihood of every target before the update at
    its time. The second is ``mixing`` times the divergence from the observation after the update. Images are raw pixels
    in inputs and predictions.

    Otherwise, or with an ``encoder``, a decoder maps the state to the targets, and images become latent observations.
    The negative log likelihood of the targets is added to the two terms. For latent observations, ``mixing`` multiplies
    both terms.
    """

    Config: ClassVar[type] = GRUODEBConfig
    config: GRUODEBConfig

    def __init__(self, spec: Spec, config: GRUODEBConfig) -> None:
        own = config.encoder is None and spec.targets_are_inputs
        if own and (config.decoder is not None or config.variance_decoder is not None):
            raise InputError("decoder", "be None without an encoder: GRU-ODE-B predicts the inputs by f_obs")
        super().__init__(spec, config, raw=own)
        self.own, state, size = own, config.state_size(spec), self.latent_size
        bernoulli = own and spec.likelihood == "bernoulli"
        self.observation: ObservationModel = (
            BernoulliObservation(size) if bernoulli else GaussianObservation(size, config.noise)
        )
        f_obs = nn.Sequential(
            nn.Linear(state, config.obs_units),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.obs_units, size * self.observation.parameters_per_input),
        )
        time_map = exponential_time_map if config.solver in OPEN_SOLVERS else uniform_time_map
        ode = ODE(GRUODEField(state), time_map=time_map, **config.solver_options)  # type: ignore[arg-type]
        longest = config.longest if config.solver in FIXED_SOLVERS else math.inf
        self.layer = GRUODEBayes(ode, state, self.observation, f_obs, config.prep_units, longest, config.most_parts)
        self.output = None if own else state_output(spec, config, config.obs_units)

    def run(
        self, batch: BatchLike, state: RecurrentState | None = None, *, on_targets: bool = False
    ) -> tuple[Tensor, Tensor, BayesStates]:
        """Compute the states at all times.

        Args:
            batch: the batch.
            state: the state to continue from.
            on_targets: whether the inputs are the targets.

        Returns:
            The inputs, their mask, and all states.
        """
        if on_targets:
            x, mask = self.targets(batch).flatten(2), batch.target_mask.expand_as(batch.targets).flatten(2)
        else:
            x, mask = self.observations(batch)
        self.layer.ode.evaluations = 0
        start, since = (None, None) if state is None else state
        return x, mask, self.layer(x, mask, gaps(self.elapsed(batch, state), since, 1.0, x.dtype), start)

    def _advance(self, batch: BatchLike, state: RecurrentState | None) -> RecurrentState:
        """Return the state after the last update."""
        return RecurrentState.after(self.run(batch, state)[2].posterior, batch)

    def predict(self, states: BayesStates, batch: BatchLike) -> Prediction:
        """Predict the targets from the states after each update."""
        if self.output is not None:
            return Prediction(*self.output(states.posterior, valid=batch.valid))
        shape = (*batch.times.shape, *self.spec.target_shape)
        mean, var = (part.reshape(shape) for part in self.observation.moments(states.updated))
        return Prediction(mean, var if self.spec.likelihood == "gaussian" else None)

    def forward(
        self, batch: BatchLike, *, state: RecurrentState | None = None, intermediates: bool = False
    ) -> Prediction:
        """Predict from every state after its update. On request, count the calls of the ODE function.

        Args:
            batch: the batch.
            state: the state to continue from.
            intermediates: whether to return states and the number of calls, too.
        """
        _, _, states = self.run(batch, state)
        more = {"prior": states.prior, "posterior": states.posterior, "evaluations": self.layer.ode.evaluations}
        return self.predict(states, batch)._replace(intermediates=more if intermediates else {})

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """Compute the two terms, plus the loss of the targets if they are not the inputs."""
        x, mask, states = self.run(batch, on_targets=self.own and self.config.train_on_targets)
        x = x.detach()  # otherwise the encoder would learn features that are easy to predict
        second = summed(self.observation.posterior_kl(x, states.updated), mask)
        series = max(len(mask), 1)
        if self.own:
            targets = self.targets(batch).flatten(2)
            counted = batch.target_mask.expand_as(batch.targets).flatten(2)
            first = summed(self.observation.nll(targets, states.predicted), counted)
            return (first + self.config.mixing * second).sum() / series
        # The scale of latent observations is arbitrary: their likelihood must not outweigh that of the targets.
        weight = 1.0 if isinstance(self.encoder, nn.Flatten) else self.config.mixing
        first = summed(self.observation.nll(x, states.predicted), mask)
        points = batch.target_mask.flatten(2).any(-1).sum()
        own = (weight * first + self.config.mixing * second).sum() + points * self.nll(
            self.predict(states, batch), batch
        )
        return own / series
