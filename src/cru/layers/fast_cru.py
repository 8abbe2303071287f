"""The f-CRU: transitions that share their eigenvectors."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cru.functional import EigenTransition, orthogonal
from cru.layers.locally_linear import LocallyLinearLayer

INITIAL_EIGENVALUE = 1e-5


class FastCRU(LocallyLinearLayer):
    """f-CRU: A = E diag(Σ_k α_k d_k) Eᵀ with E orthogonal, so that the predict step is elementwise (Sec. 3.3.2).

    Takes the arguments of `CRU` but ``coupling``; ``bandwidth`` only so that one can stand for the other: there are no
    bands here.

    Example:
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
        """Begin anew, with the numbers that a new layer would have."""
        super().reset_parameters()
        self.eigenvalues.fill_(INITIAL_EIGENVALUE)
        self.raw_eigenvectors.zero_()

    @property
    def eigenvectors(self) -> Float[Tensor, "state state"]:
        """E, computed anew at each access."""
        return orthogonal(self.raw_eigenvectors)

    def transition(self) -> EigenTransition:
        """A = E diag(Σ_k α_k d_k) Eᵀ, with E computed once a sequence."""
        return EigenTransition(self._coefficients(), self.eigenvalues, self.eigenvectors, self.noise)
