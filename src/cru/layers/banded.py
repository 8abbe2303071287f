"""Basis matrices of four banded blocks: only the entries inside the band are parameters."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class BandedBasis(nn.Module):
    """K matrices [[B11, B12], [B21, B22]], every block D × D with entries where |i - j| <= bandwidth.

    Calling it gives them dense, (basis, state, state). All start at zero, but for the diagonals of B12
    (``upper_right``) and B21 (``lower_left``).
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
        self._positions = flat  # not a buffer: it follows from the sizes, also where parameters are made empty

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """To where they start."""
        self.values.zero_()
        for block, coupling in self._couplings.items():
            self.values[:, block, self._diagonal] = coupling

    def forward(self) -> Float[Tensor, "basis state state"]:
        """The dense matrices."""
        size, count = self.state_size, self.values.shape[0]
        dense = self.values.new_zeros(count, size * size)
        return dense.index_copy(1, self._positions.to(dense.device), self.values.flatten(1)).view(count, size, size)
