"""The solution of an ordinary differential equation for a batch, in which every series has its own gap."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from cru.errors import require_extra
from cru.functional.runge_kutta import TABLEAUS, runge_kutta
from cru.layers.checks import require
from cru.shapes import Float

FIXED_SOLVERS = tuple(TABLEAUS)
ADAPTIVE_SOLVERS = ("adaptive_heun", "fehlberg2", "bosh3", "dopri5", "dopri8")
OPEN_SOLVERS = ("euler", "midpoint")  # they never evaluate the field at the end of a step
MAX_GRADIENT = 1e8  # of the loss with respect to one entry of a state

TimeMap = Callable[[Tensor], Callable[[float | Tensor], Tensor]]  # from gaps to dt/ds, as a function of s


def uniform_time_map(gap: Float[Tensor, "batch 1"]) -> Callable[[float | Tensor], Tensor]:
    """Return dt/ds of t = gap · s."""
    return lambda s: gap


def exponential_time_map(gap: Float[Tensor, "batch 1"]) -> Callable[[float | Tensor], Tensor]:
    """Return dt/ds of t = -log(1 - s (1 - e^-gap)), for which the first steps are short and later ones longer.

    Use it for a field that relaxes at a rate of at most 1, dh/dt = (1 - z)(g - h). For z = 0 and constant g, the
    solution is linear in s. A few explicit steps are then stable over any gap, even an infinite one. Equal steps
    diverge if they are longer than two units of time. dt/ds can be infinite at s = 1, so only `OPEN_SOLVERS` can use
    it.
    """
    passed = -torch.expm1(-gap)
    return lambda s: passed / (1 - s * passed)


class ODE(nn.Module):
    """The map from h(t) to h(t + gap) with dh/dt = field(h), for a batch in which every series has its own gap.

    Time is rescaled to s in [0, 1], so that dh/ds = dt/ds · field(h). One call of the solver then computes all series,
    without the union of their times. A gap of zero changes no bit of the state.

    With a fixed-step solver, a series does not depend on the rest of its batch. An adaptive solver chooses its steps
    for the complete batch, within the tolerances ``rtol`` and ``atol``.

    Example:
        >>> from cru.layers.ode import ODE
        >>> decay = ODE(torch.nn.Linear(1, 1, bias=False), solver="rk4", steps=8)
        >>> _ = torch.nn.init.constant_(decay.field.weight, -1.0)
        >>> decay(torch.ones(3, 1), torch.tensor([0.0, 1.0, 2.0])).flatten().detach()  # e^0, e^-1, e^-2
        tensor([1.0000, 0.3679, 0.1353])
        >>> decay.evaluations
        32

    Args:
        field: a module from (batch, state) to (batch, state).
        solver: one of `FIXED_SOLVERS`, or one of `ADAPTIVE_SOLVERS` from torchdiffeq.
        steps: steps of a fixed-step solver per gap.
        rtol: relative tolerance of an adaptive solver.
        atol: absolute tolerance of an adaptive solver.
        time_map: `uniform_time_map` or `exponential_time_map`.
    """

    def __init__(
        self,
        field: nn.Module,
        *,
        solver: str = "rk4",
        steps: int = 1,
        rtol: float = 1e-3,
        atol: float = 1e-4,
        time_map: TimeMap = uniform_time_map,
    ) -> None:
        super().__init__()
        known = FIXED_SOLVERS + ADAPTIVE_SOLVERS
        require(solver in known, f"`solver` must be one of {', '.join(known)}, got {solver!r}.")
        require(steps >= 1, f"`steps` must be at least 1, got {steps}.")
        require(rtol > 0 and atol > 0, f"`rtol` and `atol` must be positive, got {rtol} and {atol}.")
        require(
            time_map is not exponential_time_map or solver in OPEN_SOLVERS,
            f"`solver` must be one of {', '.join(OPEN_SOLVERS)} with the exponential time map, got {solver!r}.",
        )
        self.field, self.solver, self.steps = field, solver, steps
        self.rtol, self.atol, self.time_map = rtol, atol, time_map
        self.odeint = None if solver in FIXED_SOLVERS else require_extra("torchdiffeq", "ode").odeint
        self.evaluations = 0  # number of calls of the field; set it to 0 to count again

    def forward(
        self, state: Float[Tensor, "batch state"], gap: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch state"]:
        """Return the state after ``gap``. Gaps must not be negative."""
        gap = gap[:, None]
        speed = self.time_map(gap)

        def derivative(s: float | Tensor, h: Tensor) -> Tensor:
            self.evaluations += 1
            slope: Tensor = speed(s) * self.field(h)
            return slope

        if self.odeint is None:
            later = runge_kutta(derivative, state, self.solver, self.steps)
        else:
            ends = torch.tensor([0.0, 1.0], dtype=state.dtype, device=state.device)
            later = self.odeint(derivative, state, ends, rtol=self.rtol, atol=self.atol, method=self.solver)[-1]
            later = torch.where(gap > 0, later, state)  # the interpolation of the solver has rounding errors
        if later.requires_grad:
            later.register_hook(_clamp_gradient)  # type: ignore[no-untyped-call]
        return later

    def extra_repr(self) -> str:
        """Return the solver with its steps or tolerances."""
        if self.solver in FIXED_SOLVERS:
            return f"solver={self.solver}, steps={self.steps}"
        return f"solver={self.solver}, rtol={self.rtol}, atol={self.atol}"


def _clamp_gradient(gradient: Tensor) -> Tensor:
    """Clamp a gradient, which can grow without bound over many long gaps. Usual gradients are far smaller."""
    return gradient.clamp(-MAX_GRADIENT, MAX_GRADIENT)


def tanh_field(
    size: int,
    units: int,
    layers: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """Make an autonomous vector field: linear layers with tanh between them (Rubanova et al. 2019).

    The weights of the last layer bound the field, so a state stays finite over any gap.

    Args:
        size: size of the state.
        units: width of the hidden layers.
        layers: number of linear layers, at least 2.
        device: device of the parameters.
        dtype: type of the parameters.
    """
    require(layers >= 2, f"`layers` must be at least 2, got {layers}.")
    device = torch.device(device) if device is not None else None
    widths = [size, *[units] * (layers - 1), size]
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        modules += [nn.Linear(inputs, outputs, device=device, dtype=dtype), nn.Tanh()]
    return nn.Sequential(*modules[:-1])
