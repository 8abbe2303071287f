"""An ensemble of multilayer perceptrons that predict each time point from its own inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cru.layers.checks import require
from cru.models.base import BatchLike, Model, ModelConfig, Prediction, Spec
from cru.shapes import Float, Float64


@dataclass(frozen=True, kw_only=True)
class MLPConfig(ModelConfig):
    """Configuration of the ensemble."""

    hidden_size: int = 128
    layers: int = 2
    members: int = 5  # networks whose outputs are averaged
    dropout: float = 0.1
    binned: Sequence[int] = ()  # inputs that are also encoded by quantile bins
    bins: int = 8  # number of bins of each of them

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("hidden_size", "layers", "members", "bins")
        self.check_shares("dropout")
        fits = isinstance(self.binned, Sequence) and all(type(k) is int and k >= 0 for k in self.binned)
        require(fits, f"`binned` must be indices of inputs, got {self.binned!r}.")


class MLPModel(Model):
    """A model that predicts mean and log scale of every target from the inputs of the same time point.

    The model has no memory. The initial values of the last layer are zeros, so that the mean is 0 and the variance 1,
    or the probability is 1/2. It is the default network of the forecaster on top of a structural model, whose features
    describe the past.

    An input x in ``binned`` also enters as clamp((x - a) / (b - a), 0, 1) for each of its quantile bins from a to b. So
    a network can react to a threshold, as a tree does. `find_bins` sets the bins.
    """

    Config: ClassVar[type] = MLPConfig
    config: MLPConfig
    pointwise: ClassVar[bool] = True
    starts_at_zero: ClassVar[bool] = True

    def __init__(self, spec: Spec, config: MLPConfig) -> None:
        super().__init__(spec, config)
        require(max(config.binned, default=0) < spec.input_size, "`binned` must be indices of inputs.")
        sizes = [spec.input_size + config.bins * len(config.binned), *[config.hidden_size] * config.layers]
        count, outputs = config.members, 2 * spec.target_size
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList([torch.randn(count, a, b) * (2 / a) ** 0.5 for a, b in pairs])
        self.biases = nn.ParameterList([torch.zeros(count, 1, b) for _, b in pairs])
        self.readout = nn.Parameter(torch.zeros(count, sizes[-1], outputs))
        self.skip = nn.Parameter(torch.zeros(count, sizes[0], outputs))
        self.offset = nn.Parameter(torch.zeros(count, 1, outputs))
        self.register_buffer("edges", torch.linspace(-2, 2, config.bins + 1).repeat(len(config.binned), 1))
        self.edges: Tensor  # of the bins of each binned input

    @torch.no_grad()
    def find_bins(self, x: Float[Tensor, "row feature"]) -> None:
        """Set the edges of the bins to quantiles of the inputs. NaN entries do not count."""
        share = torch.linspace(0, 1, self.config.bins + 1, dtype=torch.float64, device=x.device)
        for number, column in enumerate(self.config.binned):
            known = x[:, column][~x[:, column].isnan()]
            if len(known) > self.config.bins:
                self.edges[number] = torch.quantile(known[:: len(known) // 100_000 + 1].double(), share)

    def encode(self, x: Float[Tensor, "*row feature"]) -> Float[Tensor, "*row encoded"]:
        """Append the bins of the binned inputs."""
        if not self.config.binned:
            return x
        low, high = self.edges[:, :-1], self.edges[:, 1:]
        part = ((x[..., list(self.config.binned), None] - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
        return torch.cat([x, part.flatten(-2)], -1)

    def members(self, x: Float[Tensor, "member row feature"]) -> Float[Tensor, "member row output"]:
        """Return the outputs of each network: means, then log scales. The inputs can differ between networks."""
        x = hidden = self.encode(x)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = F.dropout(F.silu(torch.baddbmm(bias, hidden, weight)), self.config.dropout, self.training)
        return torch.baddbmm(self.offset, hidden, self.readout) + x @ self.skip

    def forward(self, batch: BatchLike, *, intermediates: bool = False, state: Tensor | None = None) -> Prediction:
        """Predict every time point from its own inputs. ``intermediates`` and ``state`` have no effect."""
        x = self.inputs(batch).flatten(2)
        output = self.members(x.flatten(0, 1).expand(self.config.members, -1, -1)).mean(0)
        mean, log_scale = (part.reshape(*x.shape[:2], *self.spec.target_shape) for part in output.chunk(2, -1))
        if self.spec.likelihood == "bernoulli":
            return Prediction(mean.sigmoid())
        return Prediction(mean, (2 * log_scale.clamp(-10, 10)).exp())

    def _advance(self, batch: BatchLike, state: Tensor | None) -> Float64[Tensor, " batch"]:
        return batch.times[:, -1]
