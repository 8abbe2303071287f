"""The f-CRU: transitions that share their eigenvectors."""

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from cru.functional import EigenTransition
from cru.layers.filter import KalmanLayer
from cru.layers.orthogonal import Orthogonal

INITIAL_EIGENVALUE = 1e-5


class FastCRU(KalmanLayer):
    """f-CRU: A = E diag(Σ_k α_k d_k) Eᵀ with E orthogonal, so that the predict step is elementwise (Sec. 3.3.2).

    Takes the arguments of `CRU`, but for the bandwidth.

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
            time_scale=time_scale,
            noise_map=noise_map,
            variance_map=variance_map,
            device=device,
            dtype=dtype,
        )
        values = torch.full((num_basis, hidden_size), INITIAL_EIGENVALUE, device=device, dtype=dtype)
        self.eigenvalues = nn.Parameter(values)
        self.eigenvectors = nn.Parameter(torch.zeros(hidden_size, hidden_size, device=device, dtype=dtype))
        register_parametrization(self, "eigenvectors", Orthogonal())  # E = I at the start

    def transition(self) -> EigenTransition:
        """A = E diag(Σ_k α_k d_k) Eᵀ. E is computed from its parametrisation here, once a sequence."""
        return EigenTransition(self._coefficients(), self.eigenvalues, self.eigenvectors, self.noise)
