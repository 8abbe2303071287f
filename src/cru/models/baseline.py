"""The base class of the recurrent and ODE baselines: scaled time, inputs of the cell, and decoder of the state."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from cru.errors import InputError
from cru.functional import gaps
from cru.layers.decoders import tanh_decoder
from cru.layers.encoders import apply_where, features_of
from cru.models.base import BatchLike, Model, ModelConfig, OutputHead, Spec
from cru.models.networks import default_state_size, latent_encoder, make_decoder, make_variance_decoder
from cru.models.recurrent import RecurrentState
from cru.shapes import Bool, Float


@dataclass(frozen=True, kw_only=True)
class BaselineConfig(ModelConfig):
    """Options of the recurrent and ODE baselines."""

    hidden_size: int | None = None  # M; None: 30 for images, 20 otherwise
    variance_map: str = "softplus"  # positive map of the output variance
    encoder: nn.Module | None = field(default=None, repr=False)  # None: that of the CRU for images, otherwise none
    decoder: nn.Module | None = field(default=None, repr=False)  # None: that of the CRU for images, else one layer
    variance_decoder: nn.Module | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size is not None:
            self.check_counts("hidden_size")

    def state_size(self, spec: Spec) -> int:
        """Return the size M of the state."""
        return default_state_size(spec) if self.hidden_size is None else self.hidden_size


@dataclass(frozen=True, kw_only=True)
class SolverConfig(BaselineConfig):
    """Options of the baselines that solve a differential equation."""

    solver: str = "midpoint"  # see cru.layers.ode
    steps: int = 1  # per gap, for a fixed-step solver
    rtol: float = 1e-3  # for an adaptive solver
    atol: float = 1e-4  # for an adaptive solver

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("steps")
        self.check_positive("rtol", "atol")
        for name, fits, rule in (
            ("steps", self.steps <= 1000, "at most 1000"),
            ("rtol", self.rtol >= 1e-12, "at least 1e-12"),
            ("atol", self.atol >= 1e-12, "at least 1e-12"),
        ):  # beyond these limits a prediction takes too long
            if not fits:
                raise InputError(name, f"be {rule}", repr(getattr(self, name)))

    @property
    def solver_options(self) -> dict[str, str | int | float]:
        """The options of `cru.layers.ode.ODE`."""
        return {"solver": self.solver, "steps": self.steps, "rtol": self.rtol, "atol": self.atol}


class BaselineModel(Model):
    """A model whose cell has the features and their mask as inputs, or latent observations of images.

    With ``raw``, the pixels of images are the inputs of the cell.
    """

    config: BaselineConfig

    def __init__(self, spec: Spec, config: BaselineConfig, *, raw: bool = False) -> None:
        super().__init__(spec, config)
        encoder = config.encoder
        if encoder is None:
            encoder = nn.Flatten() if raw else latent_encoder(spec)
        self.encoder = encoder
        self.latent_size = features_of(self.encoder, spec.input_shape)

    def observations(
        self, batch: BatchLike
    ) -> tuple[Float[Tensor, "batch time latent"], Bool[Tensor, "batch time latent"]]:
        """Return the inputs of the cell at each time, and the mask of their observed entries."""
        observed = batch.observed
        x = apply_where(self.encoder, self.inputs(batch), observed).to(self.dtype)  # autocast may have rounded it
        if isinstance(self.encoder, nn.Flatten):
            return x, batch.mask.expand_as(batch.values).flatten(2)
        return x, observed[..., None].expand_as(x)

    def unit_gaps(self, batch: BatchLike, state: RecurrentState | None = None) -> Float[Tensor, "batch time"]:
        """Compute the gap before each time, in units of the range of the training times.

        The first gap starts at the time of ``state``.
        """
        since = None if state is None else state.time
        return gaps(self.elapsed(batch, state), since, unit_scale(self.spec), self.dtype)


def state_output(spec: Spec, config: BaselineConfig, units: int | None) -> OutputHead:
    """Make the decoder of a state: that of the CRU for images, otherwise a linear variance and a mean network.

    Args:
        spec: description of the data.
        config: options of the model.
        units: units of the hidden layer of the mean network. None: a linear network.
    """
    size = config.state_size(spec)
    mean, variance = config.decoder, config.variance_decoder
    if mean is None:
        linear = nn.Linear(size, spec.target_size) if units is None else tanh_decoder(size, spec.target_size, units)
        mean = make_decoder(spec, size) if spec.is_image else linear
    if variance is None:
        variance = make_variance_decoder(spec, size) if spec.is_image else nn.Linear(size, spec.target_size)
    return OutputHead(spec, mean, variance, config.variance_map)


def unit_times(batch: BatchLike, spec: Spec) -> Float[Tensor, "batch time"]:
    """Scale the times, so that those of the training set are in [0, 1]. Their type does not change."""
    return (batch.times - spec.time_start) * unit_scale(spec)


def unit_scale(spec: Spec) -> float:
    """Return the factor that scales the range of the training times to 1."""
    span = spec.time_end - spec.time_start
    return 1 / span if span > 0 else 1.0
