"""The f-CRU: transitions that share their eigenvectors."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cru.functional import EigenTransition, orthogonal
from cru.layers.filter import KalmanLayer

INITIAL_EIGENVALUE = 1e-5


class FastCRU(KalmanLayer):
    """f-CRU: A = E diag(Σ_k α_k d_k) Eᵀ with E orthogonal, so that the predict step is elementwise (Sec. 3.3.2).

    Takes the arguments of `CRU`; ``bandwidth`` only so that one can stand for the other: there are no bands here.

    Example:
        >>> output, state = FastCRU(2, 8)(torch.randn(3, 5, 2), torch.arange(5.0))
        >>> state.upper.shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_basis: int = 15,
        bandwidth: int = 3,
        time_scale: float = 1.0,
        noise_map: str = "softplus",
        variance_map: str = "elu+1",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_basis=num_basis,
            bandwidth=bandwidth,
            time_scale=time_scale,
            noise_map=noise_map,
            variance_map=variance_map,
            device=device,
            dtype=dtype,
        )
        values = torch.full((num_basis, hidden_size), INITIAL_EIGENVALUE, device=device, dtype=dtype)
        self.eigenvalues = nn.Parameter(values)
        self.raw_eigenvectors = nn.Parameter(torch.zeros(hidden_size, hidden_size, device=device, dtype=dtype))  # E = I

    @property
    def eigenvectors(self) -> Float[Tensor, "state state"]:
        """E, computed anew at each access."""
        return orthogonal(self.raw_eigenvectors)

    def transition(self) -> EigenTransition:
        """A = E diag(Σ_k α_k d_k) Eᵀ, with E computed once a sequence."""
        return EigenTransition(self._coefficients(), self.eigenvalues, self.eigenvectors, self.noise)
