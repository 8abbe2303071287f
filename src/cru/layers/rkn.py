"""The Recurrent Kalman Network's layer, the discrete ancestor of the CRU."""

from typing import Any

from cru.functional import DiscreteTransition
from cru.layers.banded import BandedBasis
from cru.layers.locally_linear import LocallyLinearLayer

INITIAL_COUPLING = 0.2


class RKN(LocallyLinearLayer):
    """Recurrent Kalman Network (Becker et al. 2019): one discrete transition a step, A = I + Σ_k α_k B_k.

    The length of a gap does not matter, unless ``time_aware``: then it is one more input of the network that chooses α
    (RKN-Δt). Takes the arguments of `CRU` but ``coupling``. Every new time is a step, observed or not, and `propagate`
    is one step, whatever the gap.

    Example:
        >>> output, state = RKN(2, 8, time_aware=True)(torch.randn(3, 5, 2), torch.arange(5.0))
        >>> output.shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, *, time_aware: bool = False, **options: Any) -> None:
        self.time_aware = time_aware
        super().__init__(input_size, hidden_size, **options)

    @property
    def coefficient_inputs(self) -> int:
        """The state and, if time-aware, the gap to the next time."""
        return self.hidden_size + self.time_aware

    def _add_bases(self, where: dict[str, Any]) -> None:
        sizes = (self.num_basis, self.obs_size, self.bandwidth)
        self.basis = BandedBasis(*sizes, upper_right=INITIAL_COUPLING, lower_left=-INITIAL_COUPLING, **where)

    def transition(self) -> DiscreteTransition:
        """A = I + Σ_k α_k B_k."""
        return DiscreteTransition(self._coefficients(), self.basis(), self.noise)
