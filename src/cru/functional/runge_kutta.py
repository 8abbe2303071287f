"""Explicit Runge-Kutta methods with equal steps over s in [0, 1]."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cru.shapes import Float


class Tableau(NamedTuple):
    """A Butcher tableau: the coefficients of the stages after the first, and the weights of all slopes."""

    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]


TABLEAUS = {
    "euler": Tableau((), (1.0,)),
    "midpoint": Tableau(((1 / 2,),), (0.0, 1.0)),
    "heun2": Tableau(((1.0,),), (1 / 2, 1 / 2)),
    "heun3": Tableau(((1 / 3,), (0.0, 2 / 3)), (1 / 4, 0.0, 3 / 4)),
    "rk4": Tableau(((1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)), (1 / 8, 3 / 8, 3 / 8, 1 / 8)),  # the 3/8 rule
}


def runge_kutta(
    derivative: Callable[[float, Tensor], Tensor], state: Float[Tensor, "*shape"], method: str, steps: int
) -> Float[Tensor, "*shape"]:
    """Solve dy/ds = derivative(s, y) from y(0) to y(1) in equal steps.

    Args:
        derivative: the right side of the equation.
        state: y(0).
        method: a name in `TABLEAUS`.
        steps: the number of steps.

    >>> from cru.functional.runge_kutta import runge_kutta
    >>> e = runge_kutta(lambda s, y: y, torch.ones(()), "rk4", 10)
    >>> round(float(e), 4)
    2.7183
    """
    stages, weights = TABLEAUS[method]
    for step in range(steps):
        slopes: list[Tensor] = []
        for row in ((), *stages):
            slopes.append(derivative((step + sum(row)) / steps, _add_slopes(state, row, slopes, steps)))
        state = _add_slopes(state, weights, slopes, steps)
    return state


def _add_slopes(state: Tensor, weights: Sequence[float], slopes: list[Tensor], steps: int) -> Tensor:
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            state = torch.add(state, slope, alpha=weight / steps)
    return state
