"""CRU, f-CRU and RKN: layers whose transition is a weighted mean of basis matrices (section 3.3.1).

The state determines the weights. The three layers differ in their bases and in the predict step.
"""

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from cru import native
from cru.functional import (
    Belief,
    Coefficients,
    DiscreteTransition,
    EigenTransition,
    ExpmTransition,
    Transition,
    filter_sequence,
    orthogonal,
)
from cru.functional.transition import with_finite_gradients
from cru.layers.checks import check_bases, require
from cru.layers.filter import KalmanLayer, LayerOptions
from cru.shapes import Bool, Float

INITIAL_EIGENVALUE = 1e-5
"""Eigenvalue of every basis of a new f-CRU."""
INITIAL_COUPLING = 0.2
"""Coupling of the two halves of the state in a new RKN."""


class BasisOptions(LayerOptions, total=False):
    """Options of every layer with basis matrices. `LocallyLinearLayer` describes them and has their defaults."""

    num_basis: int
    bandwidth: int


class LocallyLinearLayer(KalmanLayer):
    """Base class of CRU, f-CRU and RKN. A subclass adds its bases and defines its `transition`.

    Args:
        input_size: as for `KalmanLayer`.
        hidden_size: as for `KalmanLayer`.
        num_basis: number K of basis matrices.
        bandwidth: entries |i - j| <= bandwidth of each D × D block are trained.
        options: as for `KalmanLayer`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_basis: int = 15,
        bandwidth: int = 3,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, **options)
        check_bases(hidden_size, num_basis, bandwidth)
        self.num_basis, self.bandwidth = num_basis, bandwidth
        self._frozen: Transition | None = None
        where: dict[str, Any] = {"device": self.raw_noise.device, "dtype": self.raw_noise.dtype}
        self.coefficients = nn.Linear(self.coefficient_inputs, num_basis, **where)
        self._add_bases(where)

    def reset_parameters(self) -> None:
        """Set all parameters to the values of a new layer."""
        self._frozen = None
        super().reset_parameters()

    @property
    def coefficient_inputs(self) -> int:
        """Number of inputs of the network that computes the weights of the bases: the size of the state."""
        return self.hidden_size

    def _add_bases(self, where: dict[str, Any]) -> None:
        """Add the parameters of the bases, with the device and type in ``where``."""
        raise TypeError("LocallyLinearLayer is a base class: use CRU, FastCRU or RKN")

    def transition(self) -> Transition:
        """Return the dynamics of the current parameters as plain data."""
        raise TypeError("LocallyLinearLayer is a base class: use CRU, FastCRU or RKN")

    def freeze(self) -> None:
        """Compute the transition once, in evaluation mode, until the layer is trained, loaded or moved."""
        with torch.no_grad():
            self._frozen = None if self.training else self.transition()

    def train(self, mode: bool = True) -> "LocallyLinearLayer":
        """Set the mode, as `torch.nn.Module.train` does."""
        self._frozen = None if mode else self._frozen
        return super().train(mode)

    def _apply(self, *arguments: Any, **options: Any) -> "LocallyLinearLayer":
        self._frozen = None
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._frozen = None
        super()._load_from_state_dict(*arguments)

    def _coefficients(self) -> Coefficients:
        plain = torch.compiler.is_compiling() or type(self.coefficients).forward is nn.Linear.forward
        require(plain, "`coefficients` must be a plain or parametrized nn.Linear: only its weight and bias are used.")
        return Coefficients(self.coefficients.weight, self.coefficients.bias)

    def _predict(self, state: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        transition = with_finite_gradients(self._frozen or self.transition())
        return transition.predict(state, delta, transition.plan(delta))

    def _filter_sequence(
        self,
        start: Belief,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        observed: Bool[Tensor, "batch time obs"],
        delta: Float[Tensor, "batch time"],
    ) -> tuple[Belief, Belief]:
        transition = self._frozen or self.transition()
        run = native.filter_sequence if native.available(transition, y, delta) else filter_sequence
        stepped = delta != 0
        if not isinstance(transition, DiscreteTransition) and (delta.requires_grad or native.transformed()):
            stepped = torch.ones_like(stepped)  # a gap of 0 changes no value, but it has a derivative
        return run(transition, start, y, y_var, observed, delta, stepped)

    def extra_repr(self) -> str:
        """Return the sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, num_basis={self.num_basis}"


class CRU(LocallyLinearLayer):
    """Continuous Recurrent Unit: dz = A z dt + dβ between observations, with A = Σ_k α_k(μ⁺) B_k (section 3).

    Example:
        >>> from cru import CRU
        >>> layer = CRU(input_size=2, hidden_size=8)
        >>> x, times = torch.randn(3, 5, 2), torch.rand(3, 5).cumsum(1)
        >>> output, state = layer(x, times)
        >>> output.shape
        torch.Size([3, 5, 8])

    Args:
        input_size: number of features of an observation.
        hidden_size: size M of the state, even. A latent observation has D = M / 2 dimensions.
        coupling: initial rotation rate between the two halves of the state, in radians per unit of scaled time. With
            0, as in the paper, the state of a new layer is constant between observations.
        num_basis: number K of basis matrices.
        bandwidth: entries |i - j| <= bandwidth of each D × D block are trained.
        time_scale: factor on the gaps between times.
        noise_map: map that makes the process noise positive, one of the names in `cru.functional.positive`.
        variance_map: map that makes the observation variance positive.
        device: device of the parameters.
        dtype: type of the parameters and of the computation, torch.float32 or torch.float64.

    Raises:
        ValueError: if an argument is not valid.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, coupling: float = 0.0, **options: Unpack[BasisOptions]
    ) -> None:
        require(math.isfinite(coupling), f"`coupling` must be finite, got {coupling!r}.")
        self.coupling = coupling
        super().__init__(input_size, hidden_size, **options)

    def _add_bases(self, where: dict[str, Any]) -> None:
        sizes = (self.num_basis, self.obs_size, self.bandwidth)
        self.basis = BandedBasis(*sizes, upper_right=self.coupling, lower_left=-self.coupling, **where)

    def transition(self) -> ExpmTransition:
        """Return A = Σ_k α_k B_k."""
        return ExpmTransition(self._coefficients(), self.basis(), self.noise)

    def extra_repr(self) -> str:
        """Return the sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, bandwidth={self.bandwidth}, coupling={self.coupling}"


class FastCRU(LocallyLinearLayer):
    """f-CRU: A = E diag(Σ_k α_k d_k) Eᵀ with E orthogonal, so the predict step is elementwise (section 3.3.2).

    It takes the arguments of `CRU` except ``coupling``. It ignores ``bandwidth``, because it has no bands.

    Example:
        >>> from cru import FastCRU
        >>> output, state = FastCRU(2, 8)(torch.randn(3, 5, 2), torch.arange(5.0))
        >>> state.upper.shape
        torch.Size([3, 4])
    """

    def _add_bases(self, where: dict[str, Any]) -> None:
        size = self.hidden_size
        self.eigenvalues = nn.Parameter(torch.full((self.num_basis, size), INITIAL_EIGENVALUE, **where))
        self.raw_eigenvectors = nn.Parameter(torch.zeros(size, size, **where))  # E = I

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set all parameters to the values of a new layer."""
        super().reset_parameters()
        self.eigenvalues.fill_(INITIAL_EIGENVALUE)
        self.raw_eigenvectors.zero_()

    @property
    def eigenvectors(self) -> Float[Tensor, "state state"]:
        """The eigenvectors E. Every access computes them."""
        return orthogonal(self.raw_eigenvectors)

    def transition(self) -> EigenTransition:
        """Return A = E diag(Σ_k α_k d_k) Eᵀ, with E computed once per sequence."""
        return EigenTransition(self._coefficients(), self.eigenvalues, self.eigenvectors, self.noise)


class RKN(LocallyLinearLayer):
    """Recurrent Kalman Network (Becker et al. 2019): one discrete transition per step, A = I + Σ_k α_k B_k.

    Every new time is one step, observed or not. `propagate` is one step for any gap. The layer takes the arguments of
    `CRU` except ``coupling``.

    Example:
        >>> from cru import RKN
        >>> output, state = RKN(2, 8, time_aware=True)(torch.randn(3, 5, 2), torch.arange(5.0))
        >>> output.shape
        torch.Size([3, 5, 8])

    Args:
        input_size: as for `CRU`.
        hidden_size: as for `CRU`.
        time_aware: whether the gap is an input of the network that computes α (RKN-Δt). Otherwise gaps have no effect.
        options: as for `CRU`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, time_aware: bool = False, **options: Unpack[BasisOptions]
    ) -> None:
        self.time_aware = time_aware
        super().__init__(input_size, hidden_size, **options)

    @property
    def coefficient_inputs(self) -> int:
        """Number of inputs of the network that computes the weights of the bases: the state and perhaps the gap."""
        return self.hidden_size + self.time_aware

    def _add_bases(self, where: dict[str, Any]) -> None:
        sizes = (self.num_basis, self.obs_size, self.bandwidth)
        self.basis = BandedBasis(*sizes, upper_right=INITIAL_COUPLING, lower_left=-INITIAL_COUPLING, **where)

    def transition(self) -> DiscreteTransition:
        """Return A = I + Σ_k α_k B_k."""
        return DiscreteTransition(self._coefficients(), self.basis(), self.noise)

    def extra_repr(self) -> str:
        """Return the sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, bandwidth={self.bandwidth}, time_aware={self.time_aware}"


class BandedBasis(nn.Module):
    """K matrices [[B11, B12], [B21, B22]]. Only entries |i - j| <= bandwidth of each D × D block are parameters.

    A call returns the dense matrices, (basis, state, state). In a new basis, only the diagonals of B12 and B21 are set.

    Args:
        num_basis: number K of matrices.
        obs_size: size D of a block.
        bandwidth: width of the band.
        upper_right: diagonal of B12 in a new basis.
        lower_left: diagonal of B21 in a new basis.
        device: device of the parameters.
        dtype: type of the parameters.
    """

    def __init__(
        self,
        num_basis: int,
        obs_size: int,
        bandwidth: int,
        *,
        upper_right: float = 0.0,
        lower_left: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.state_size = 2 * obs_size
        index = torch.arange(obs_size, device="cpu")
        rows, columns = ((index[:, None] - index[None, :]).abs() <= bandwidth).nonzero(as_tuple=True)
        self.values = nn.Parameter(torch.empty(num_basis, 4, len(rows), device=device, dtype=dtype))
        self._diagonal, self._couplings = rows == columns, {1: upper_right, 2: lower_left}
        self.reset_parameters()
        blocks = [(0, 0), (0, obs_size), (obs_size, 0), (obs_size, obs_size)]
        flat = torch.cat([(rows + r) * self.state_size + columns + c for r, c in blocks])
        self._positions = flat  # not a buffer: the sizes determine it, even if parameters are allocated empty

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set all parameters to the values of a new basis."""
        self.values.zero_()
        for block, coupling in self._couplings.items():
            self.values[:, block, self._diagonal] = coupling

    def forward(self) -> Float[Tensor, "basis state state"]:
        """Return the dense matrices."""
        size, count = self.state_size, self.values.shape[0]
        dense = self.values.new_zeros(count, size * size)
        return dense.index_copy(1, self._positions.to(dense.device), self.values.flatten(1)).view(count, size, size)
