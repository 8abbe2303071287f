"""The predict steps of the CRU over a sequence, with a custom gradient.

Like `expm.py`, this module integrates Φ(s) diag(q) Φ(s)ᵀ by Gauss-Lobatto quadrature, and Φ(s) is a Taylor series. It
saves operations as follows:

1. A gap that is too long for one series has 2^n panels instead of n doublings. The nodes of the later half of the
   panels are Φ times those of the earlier half. So the noise is a sum of squares, without cancellation and without a
   clamp. Only three diagonals are computed.
2. The powers of Z come from few products of wide matrices: [Zⁿ⁺¹ … Z²ⁿ] = Zⁿ [Z … Zⁿ].
3. The number of panels depends on the gap and on the largest norm of a basis, not on the state. So it is known before
   the loop. In each step the longest gaps come first, so that the rows with more panels are a slice.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from cru.functional.belief import bounds
from cru.functional.dense_steps import DenseSteps, diagonals_times, symmetric, transport, transport_backward
from cru.functional.expm import lobatto
from cru.functional.packed import UPPER
from cru.functional.stepped_rows import SteppedRows
from cru.functional.transition import ExpmTransition
from cru.shapes import Bool, Float


class TaylorSeries(NamedTuple):
    """Taylor order and number of quadrature points of a step h with ‖A h‖ <= longest."""

    order: int
    points: int
    longest: float


_SERIES = {  # errors of Φ, of Φ - I and of the integral below 2e-7 and 1e-15, as in `plan_step` of native/expm.h
    torch.float32: (TaylorSeries(4, 4, 0.1), TaylorSeries(8, 5, 0.7), TaylorSeries(12, 6, 1.7)),
    torch.float64: (TaylorSeries(8, 5, 0.08), TaylorSeries(16, 8, 0.9), TaylorSeries(24, 9, 1.5)),
}
MAX_LEVELS = 4
"""Largest n of 2^n panels. The cost of a panel is constant, so doublings are cheaper for longer gaps."""
_SQUARINGS = 4
"""Squarings of BᵀB in `norm_bound`: for M = 100 it is at most 8 % too large."""


def norm_bound(basis: Float[Tensor, "basis state state"]) -> Float[Tensor, ""]:
    """Bound the spectral norm of every weighted mean of the bases: the largest ‖G^n‖_F^(1/2n) for G = BᵀB, n = 16."""
    gram, log_norm = basis.mT @ basis, basis.new_zeros(len(basis))
    tiny = torch.finfo(basis.dtype).tiny
    for squaring in range(_SQUARINGS + 1):
        gram = gram @ gram if squaring else gram
        size = torch.linalg.matrix_norm(gram).clamp_min(tiny)
        log_norm = log_norm + size.log() / 2**squaring
        gram = gram / size[:, None, None]  # so that no power overflows
    return (log_norm / 2).exp().amax()


def covers(transition: ExpmTransition, delta: Float[Tensor, "time batch"]) -> Bool[Tensor, "time batch"]:
    """Return where `ExpmSteps` can be used: where the gap is not too long and no entry of Φ can reach its bound."""
    longest = min(_SERIES[delta.dtype][-1].longest * 2**MAX_LEVELS, math.log(bounds(delta.dtype).transition))
    return torch.le(norm_bound(transition.basis) * delta, longest)


class QuadraturePanels:
    """The panels of all rows of a step, stacked: the first panels of all rows, then the second ones, and so on.

    Args:
        count: number of rows of the step.
        levels: for each doubling of the number of panels, the number of rows that have it. These are the first rows.
    """

    def __init__(self, count: int, levels: tuple[int, ...]) -> None:
        sizes = [count, *(size for level, size in enumerate(levels) for _ in range(2**level))]
        edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        self.count, self.levels, self.panels = count, levels, [slice(*edge) for edge in pairwise(edges)]
        self.ends = []  # where the last panel of each row is, and of which rows, in their order
        for level, (most, least) in reversed(list(enumerate(pairwise((count, *levels, 0))))):
            start = edges[2**level - 1]
            self.ends.append((slice(start + least, start + most), slice(least, most)))

    def doublings(self) -> list[tuple[slice, list[tuple[slice, slice]]]]:
        """Return, for each doubling, the last panels before it, and the earlier and later panels of the same rows."""
        found = []
        for level, size in enumerate(self.levels):
            half = 2**level
            earlier = [slice(panel.start, panel.start + size) for panel in self.panels[:half]]
            later = self.panels[half : 2 * half]
            found.append((earlier[-1], list(zip(earlier, later, strict=True))))
        return found

    def at_ends(self, stack: Float[Tensor, "panels *rest"]) -> Float[Tensor, "rows *rest"]:
        """Return the last panel of each row, in the order of the rows."""
        return torch.cat([stack[part] for part, _ in self.ends]) if self.levels else stack

    def spread(self, rows: Float[Tensor, "rows *rest"]) -> Float[Tensor, "panels *rest"]:
        """Repeat each row for all of its panels."""
        return torch.cat([rows[: part.stop - part.start] for part in self.panels]) if self.levels else rows

    def total(self, stack: Float[Tensor, "panels *rest"]) -> Float[Tensor, "rows *rest"]:
        """Sum over the panels of each row, in place."""
        rows = stack[: self.count]
        for part in self.panels[1:]:
            rows[: part.stop - part.start].add_(stack[part])
        return rows


class Rule(NamedTuple):
    """The constants of a `TaylorSeries`."""

    powers: Float[Tensor, "points order"]  # σ^k / k! for each node σ and power k
    weights: Float[Tensor, " points"]  # of the quadrature
    noise: Float[Tensor, " columns"]  # each weight times q


class ExpmSteps(DenseSteps):
    """The predict step of the CRU at each time.

    Args:
        transition: the transition, without gradients.
        delta: the gap before each time.
        stepped: True where the predict step runs.
    """

    def __init__(
        self, transition: ExpmTransition, delta: Float[Tensor, "time batch"], stepped: Bool[Tensor, "time batch"]
    ) -> None:
        rows = SteppedRows(stepped, rank=delta)
        gap, choices = rows.gather(delta), _SERIES[delta.dtype]
        size = norm_bound(transition.basis) * gap
        more = torch.stack([size > choices[-1].longest * 2**level for level in range(MAX_LEVELS)], 1)
        h = (gap * torch.exp2(-more.sum(1)))[:, None]  # the length of a panel
        super().__init__(transition.coefficients, transition.basis, rows, h, gap[:, None])
        before = torch.cat([more.new_zeros(1, MAX_LEVELS), more.cumsum(0)])[rows.offsets]
        levels = (tuple(n for n in step if n) for step in before.diff(dim=0).tolist())
        self.panels = [QuadraturePanels(count, step) for count, step in zip(rows.counts, levels, strict=True)]
        largest = rows.first_of_each(size)
        self.series = [next((each for each in choices if x <= each.longest), choices[-1]) for x in largest]
        self.noise = transition.noise
        self.rules = {series: self._rule(series) for series in set(self.series)}
        self.row_size = sum(max(self.series)[:2]) * self.state**2

    def _rule(self, series: TaylorSeries) -> Rule:
        nodes, weights = lobatto(series.points)
        powers = [[node**k / math.factorial(k) for k in range(1, series.order + 1)] for node in nodes]
        w = self.noise.new_tensor(weights)
        return Rule(self.noise.new_tensor(powers), w, torch.outer(w, self.noise).flatten())

    def _nodes(
        self, Z: Float[Tensor, "rows state state"], series: TaylorSeries
    ) -> tuple[Float[Tensor, "rows state powers"], Float[Tensor, "rows state columns"]]:
        """Return the powers of Z = A h, and Φ at all nodes of the first panels (columns: node and state)."""
        size, count = self.state, len(Z) * self.state
        powers = powers_of(Z, series.order)
        factors = self.rules[series].powers.expand(count, series.points, series.order)
        nodes = torch.bmm(factors, powers.view(count, series.order, size)).view(-1, size, series.points, size)
        nodes.diagonal(dim1=1, dim2=3).add_(1)
        return powers, nodes.flatten(2)

    def forward(self, t: int, before: Float[Tensor, "rows 5 obs"], out: Float[Tensor, "rows 5 obs"]) -> None:
        """Write the priors of the rows. With weights w_m and Φ_m at the nodes of all panels:

        μ⁻ = Φ μ⁺,  Σ⁻ = Φ Σ⁺ Φᵀ + h Σ_m w_m Φ_m diag(q) Φ_mᵀ.
        """
        panels, rule = self.panels[t], self.rules[self.series[t]]
        _, Z = self.weigh(before, self.scales[t], self.gaps[t])
        nodes = all_panels(self._nodes(Z, self.series[t])[1], panels)
        transport(before, panels.at_ends(nodes[..., -self.state :]), out)
        upper, lower = nodes.chunk(2, 1)
        noise = out.new_empty(len(nodes), 3, out.shape[-1])
        noise[:, ::2] = (nodes.square() @ rule.noise).view_as(noise[:, ::2])
        noise[:, 1] = (upper * lower) @ rule.noise
        out[:, UPPER:].addcmul_(panels.total(noise), self.scales[t][..., None])

    def prepare(self, priors: Float[Tensor, "time batch 5 obs"], states: Float[Tensor, "states batch 5 obs"]) -> None:
        """Set all sums to zero."""
        super().prepare(priors, states)
        self.grad_noise = torch.zeros_like(self.noise)

    def start_span(self, first: int, last: int) -> None:
        """Compute the first panels of the steps from ``last`` - 1 to ``first``."""
        super().start_span(first, last)
        self.span_series = max(self.series[first:last])  # the series for the longest gap fits all gaps
        split = (self.rows.split(part, first, last) for part in self._nodes(self.Z, self.span_series))
        self.first_panels = dict(zip(range(first, last), zip(*split, strict=True), strict=True))

    def backward(self, t: int, grad: Float[Tensor, "batch 5 obs"]) -> Float[Tensor, "rows 5 obs"]:
        """Return the gradient by the rows before the step. With the symmetric gradient Γ by Σ⁻:

        Φ̄_m = 2 h w_m Γ Φ_m diag(q),  q̄_j = h Σ_m w_m (Φ_mᵀ Γ Φ_m)_jj.
        """
        self.ensure_span(t)
        panels, rule, size = self.panels[t], self.rules[self.span_series], self.state
        before, grad, (powers, nodes) = self.steps[t][0], self.rows.select(t, grad), self.first_panels[t]
        nodes = all_panels(nodes, panels)
        products = diagonals_times(panels.spread(symmetric(grad)), nodes)  # Γ Φ_m
        along = (products * nodes).sum(1)
        phi, product, along_phi = (panels.at_ends(part[..., -size:]) for part in (nodes, products, along))
        found, grad_phi = transport_backward(before, phi, grad, product, along_phi)
        h = panels.spread(self.scales[t])
        self.grad_noise.addmv_((along.mT @ h).view(-1, size).mT, rule.weights)
        grad_nodes = products.mul_((2 * h * rule.noise)[:, None])
        for part, rows in panels.ends:
            grad_nodes[part, :, -size:].add_(grad_phi[rows])
        all_panels_backward(nodes, grad_nodes, panels, size)
        by_node = grad_nodes[: len(before)].view(len(before) * size, -1, size)
        by_power = torch.bmm(rule.powers.mT.expand(len(by_node), -1, -1), by_node).view(powers.shape)
        self.weigh_backward(t, powers_backward(powers, by_power, size), found)
        return found

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients by weight, bias, bases and noise."""
        return *self.shared_gradients(), self.grad_noise


def _sizes(order: int) -> list[int]:
    """Return the number of known powers after each product."""
    sizes = [1]
    while sizes[-1] < order:
        sizes.append(min(2 * sizes[-1], order))
    return sizes


def powers_of(Z: Float[Tensor, "rows state state"], order: int) -> Float[Tensor, "rows state columns"]:
    """Return [Z | Z² | … | Z^order]."""
    size, powers = Z.shape[-1], Z
    for known, more in pairwise(_sizes(order)):
        last = powers[..., (known - 1) * size :]
        powers = torch.cat([powers, torch.bmm(last, powers[..., : (more - known) * size])], -1)
    return powers


def powers_backward(
    powers: Float[Tensor, "rows state columns"], grad: Float[Tensor, "rows state columns"], size: int
) -> Float[Tensor, "rows state state"]:
    """Return Z̄ from the gradients by all powers. For each product P' = Lᵐ P with the last known power Lᵐ:

    P̄ += (Lᵐ)ᵀ P̄',  L̄ᵐ += P̄' Pᵀ.
    """
    for known, more in reversed(list(pairwise(_sizes(powers.shape[-1] // size)))):
        end, used = known * size, (more - known) * size
        later, last = grad[..., end : end + used], powers[..., end - size : end]
        earlier = torch.baddbmm(grad[..., :used], last.mT, later)
        grad = earlier if used == end else torch.cat([earlier, grad[..., used:end]], -1)
        grad[..., -size:].add_(torch.bmm(later, powers[..., :used].mT))
    return grad


def all_panels(
    nodes: Float[Tensor, "rows state columns"], panels: QuadraturePanels
) -> Float[Tensor, "panels state columns"]:
    """Append the nodes of all panels after the first: Φ at the end of the earlier half, times each earlier node."""
    if not panels.levels:
        return nodes
    stack, size = [nodes], nodes.shape[1]
    for count in panels.levels:
        phi = stack[-1][:count, :, -size:]
        stack += [torch.bmm(phi, panel[:count]) for panel in stack]
    return torch.cat(stack)


def all_panels_backward(
    nodes: Float[Tensor, "panels state columns"],
    grad: Float[Tensor, "panels state columns"],
    panels: QuadraturePanels,
    size: int,
) -> None:
    """Add the gradients of later panels to those of the first panels. For N' = Φ N:  N̄ += Φᵀ N̄',  Φ̄ += Σ N̄' Nᵀ."""
    for last, halves in reversed(panels.doublings()):
        phi = nodes[last, :, -size:]
        by_phi = sum(torch.bmm(grad[later], nodes[earlier].mT) for earlier, later in halves)
        for earlier, later in halves:
            grad[earlier].baddbmm_(phi.mT, grad[later])
        grad[last, :, -size:].add_(by_phi)
