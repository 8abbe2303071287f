"""One way to solve an ordinary differential equation: every series over its own gap, all at once."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from cru.extras import require_extra
from cru.functional.runge_kutta import TABLEAUS, runge_kutta
from cru.layers.checks import require
from cru.shapes import Float

FIXED_SOLVERS = tuple(TABLEAUS)
ADAPTIVE_SOLVERS = ("adaptive_heun", "fehlberg2", "bosh3", "dopri5", "dopri8")
OPEN_SOLVERS = ("euler", "midpoint")  # never look at the very end of a step
LARGEST_GRADIENT = 1e8  # with respect to a state

TimeMap = Callable[[Tensor], Callable[[float | Tensor], Tensor]]  # from gaps to dt/ds, as a function of s


def uniform_time_map(gap: Float[Tensor, "batch 1"]) -> Callable[[float | Tensor], Tensor]:
    """dt/ds of t = gap · s: time passes evenly."""
    return lambda s: gap


def exponential_time_map(gap: Float[Tensor, "batch 1"]) -> Callable[[float | Tensor], Tensor]:
    """dt/ds of t = -log(1 - s (1 - e^-gap)): short steps first, then ever longer ones, up to an endless gap.

    For a field that relaxes at a rate of at most 1, dh/dt = (1 - z)(g - h). With z and g constant and z = 0 the
    solution is a straight line in s, so a few explicit steps are stable over any gap, where even ones blow up beyond
    two units of time. dt/ds has no end at s = 1: for `OPEN_SOLVERS` only.
    """
    passed = -torch.expm1(-gap)
    return lambda s: passed / (1 - s * passed)


class ODE(nn.Module):
    """h(t + gap) from h(t) where dh/dt = field(h), for a batch in which every series has a gap of its own.

    Time is rescaled to s in [0, 1], so that dh/ds = dt/ds · field(h) and one solution serves all series: there is no
    need for the union of all times in the batch. A gap of zero changes nothing, to the bit.

    With a fixed-step solver a series does not depend on what else is in its batch; an adaptive one chooses its steps
    for the batch as a whole, to within ``rtol`` and ``atol``.

    Example:
        >>> decay = ODE(torch.nn.Linear(1, 1, bias=False), solver="rk4", steps=8)
        >>> _ = torch.nn.init.constant_(decay.field.weight, -1.0)
        >>> decay(torch.ones(3, 1), torch.tensor([0.0, 1.0, 2.0])).flatten().detach()  # e^0, e^-1, e^-2
        tensor([1.0000, 0.3679, 0.1353])
        >>> decay.evaluations
        32

    Args:
        field: a module from (batch, state) to (batch, state).
        solver: one of `FIXED_SOLVERS`, or one of the `ADAPTIVE_SOLVERS`, which are torchdiffeq's.
        steps: steps of a fixed-step solver per gap.
        rtol, atol: tolerances of an adaptive solver.
        time_map: how s maps to time: `uniform_time_map` or `exponential_time_map`.
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
        self.evaluations = 0  # of the field for a whole batch, since the start; set it to 0 to count anew

    def forward(
        self, state: Float[Tensor, "batch state"], gap: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch state"]:
        """The state after ``gap``, a length of time for each series, not negative."""
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
            later = torch.where(gap > 0, later, state)  # it interpolates, and so rounds where nothing moves
        if later.requires_grad:
            later.register_hook(_held)  # type: ignore[no-untyped-call]
        return later

    def extra_repr(self) -> str:
        """The solver and what it is bound by."""
        if self.solver in FIXED_SOLVERS:
            return f"solver={self.solver}, steps={self.steps}"
        return f"solver={self.solver}, rtol={self.rtol}, atol={self.atol}"


def _held(gradient: Tensor) -> Tensor:
    """A gradient that has grown over many long gaps, kept from overflowing. Nothing else is that large."""
    return gradient.clamp(-LARGEST_GRADIENT, LARGEST_GRADIENT)


def tanh_field(
    size: int,
    units: int,
    layers: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """An autonomous vector field: ``layers`` linear layers, tanh between them, ``units`` wide (Rubanova et al. 2019).

    Its speed is bounded by the weights of the last layer, so a state stays finite over any gap.
    """
    require(layers >= 2, f"`layers` must be at least 2, got {layers}.")
    device = torch.device(device) if device is not None else None
    widths = [size, *[units] * (layers - 1), size]
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        modules += [nn.Linear(inputs, outputs, device=device, dtype=dtype), nn.Tanh()]
    return nn.Sequential(*modules[:-1])
