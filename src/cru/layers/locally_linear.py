"""Layers whose transition is a weighted mean of basis matrices, chosen by the state (Sec. 3.3.1)."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cru import native
from cru.functional import Belief, Coefficients, DiscreteTransition, Transition, filter_sequence
from cru.functional.transition import with_finite_gradients
from cru.layers.checks import check_bases, require
from cru.layers.filter import KalmanLayer


class LocallyLinearLayer(KalmanLayer):
    """CRU, f-CRU and RKN: a leaf adds its bases and says what its `transition` is."""

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
        maps = {"noise_map": noise_map, "variance_map": variance_map}
        super().__init__(input_size, hidden_size, time_scale=time_scale, **maps, device=device, dtype=dtype)
        check_bases(hidden_size, num_basis, bandwidth)
        self.num_basis, self.bandwidth = num_basis, bandwidth
        self._fixed: Transition | None = None
        where = {"device": self.raw_noise.device, "dtype": self.raw_noise.dtype}
        self.coefficients = nn.Linear(self.coefficient_inputs, num_basis, **where)  # type: ignore[arg-type]
        self._add_bases(where)

    def reset_parameters(self) -> None:
        """Begin anew, with the numbers that a new layer would have."""
        self._fixed = None
        super().reset_parameters()

    @property
    def coefficient_inputs(self) -> int:
        """What the network that weighs the bases sees: the state."""
        return self.hidden_size

    def _add_bases(self, where: dict[str, Any]) -> None:
        """Make the parameters of the bases, on a device and in a type."""
        raise TypeError("LocallyLinearLayer is a base class: use CRU, FastCRU or RKN")

    def transition(self) -> Transition:
        """The dynamics as plain data, from the parameters as they are now."""
        raise TypeError("LocallyLinearLayer is a base class: use CRU, FastCRU or RKN")

    def freeze(self) -> None:
        """In evaluation mode, compute the transition once: until the layer is trained, loaded or moved again."""
        with torch.no_grad():
            self._fixed = None if self.training else self.transition()

    def train(self, mode: bool = True) -> "LocallyLinearLayer":
        """As `torch.nn.Module.train`."""
        self._fixed = None if mode else self._fixed
        return super().train(mode)

    def _apply(self, *arguments: Any, **options: Any) -> "LocallyLinearLayer":
        self._fixed = None
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._fixed = None
        super()._load_from_state_dict(*arguments)

    def _coefficients(self) -> Coefficients:
        plain = torch.compiler.is_compiling() or type(self.coefficients).forward is nn.Linear.forward
        require(plain, "`coefficients` must stay a plain nn.Linear (or parametrized): it is read, and never called.")
        return Coefficients(self.coefficients.weight, self.coefficients.bias)

    def _predict(self, state: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        transition = with_finite_gradients(self._fixed or self.transition())
        return transition.predict(state, delta, transition.plan(delta))

    def _run(
        self,
        start: Belief,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        observed: Bool[Tensor, "batch time obs"],
        delta: Float[Tensor, "batch time"],
    ) -> tuple[Belief, Belief]:
        transition = self._fixed or self.transition()
        run = native.filter_sequence if native.available(transition, y, delta) else filter_sequence
        moves = delta != 0
        if not isinstance(transition, DiscreteTransition) and (delta.requires_grad or native.transformed()):
            moves = torch.ones_like(moves)  # a gap of 0 moves nothing, but has a derivative
        return run(transition, start, y, y_var, observed, delta, moves)

    def extra_repr(self) -> str:
        """Sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, num_basis={self.num_basis}"
