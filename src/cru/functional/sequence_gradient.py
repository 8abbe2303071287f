"""The filter of a complete sequence as one autograd function: few operations for each step, and little memory.

The forward pass stores only the beliefs. The backward pass computes all other results again. It computes the factors of
the gradient for many steps at once. `docs/explanation/backward-passes.md` derives the formulas.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cru.functional import discrete_steps, eigen_steps, expm_steps
from cru.functional.belief import Belief, transformed
from cru.functional.packed import PackedClamp, finite_, pack, unpack
from cru.functional.plain_steps import PlainSteps
from cru.functional.steps import PredictSteps
from cru.functional.stepwise import filter_stepwise
from cru.functional.transition import (
    DiscreteTransition,
    EigenTransition,
    ExpmTransition,
    Transition,
    parameters_of,
    with_parameters,
)
from cru.functional.update_steps import UpdateSteps
from cru.shapes import Bool, Float

_STEPS: dict[type, Any] = {
    ExpmTransition: (expm_steps.covers, expm_steps.ExpmSteps),
    EigenTransition: (eigen_steps.covers, eigen_steps.EigenSteps),
    DiscreteTransition: (discrete_steps.covers, discrete_steps.DiscreteSteps),
}


def available(transition: Transition, y: Float[Tensor, "batch time obs"], delta: Float[Tensor, "batch time"]) -> bool:
    """Return whether the custom gradient supports this call: without a gradient by gaps and outside transforms.

    The constant matrices of the f-CRU in `eigen_steps.py` are as large as one matrix for each state dimension. They are
    faster only if there are at least as many rows.

    Args:
        transition: the predict step.
        y: latent observations.
        delta: the gap before each time.
    """
    if torch.compiler.is_exporting() or transformed() or type(transition) not in _STEPS or not y.numel():
        return False
    state, inputs = 2 * y.shape[-1], transition.coefficients.weight.shape[-1]
    if isinstance(transition, EigenTransition) and delta.numel() < state:
        return False
    known = inputs == state or isinstance(transition, DiscreteTransition)
    return known and not (delta.requires_grad and torch.is_grad_enabled())


def filter_with_custom_gradient(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    stepped: Bool[Tensor, "batch time"],
) -> tuple[Belief, Belief]:
    """Compute `filter_sequence` with a custom first derivative. Call `available` first.

    A second derivative runs `filter_stepwise` in the backward pass. The arguments are those of `filter_sequence`.
    """
    constants = Constants(transition, *(tensor.transpose(0, 1) for tensor in (mask, delta.detach(), stepped)))
    tensors = (pack(start), y.transpose(0, 1), y_var.transpose(0, 1), *parameters_of(transition))
    priors, states = _Filter.apply(constants, *tensors)  # type: ignore[no-untyped-call]
    return unpack(priors.transpose(0, 1)), unpack(states[1:].transpose(0, 1))


class Constants(NamedTuple):
    """The arguments of a filter without a gradient, time first. Only the type of ``transition`` is used."""

    transition: Transition
    mask: Bool[Tensor, "time batch obs"]
    delta: Float[Tensor, "time batch"]
    stepped: Bool[Tensor, "time batch"]

    def predict_steps(self, parameters: list[Tensor]) -> list[PredictSteps]:
        """Return the predict steps: custom ones, and plain ones where the gap is too long for a custom one."""
        transition = with_parameters(self.transition, [parameter.detach() for parameter in parameters])
        covers, make = _STEPS[type(transition)]
        covered = covers(transition, self.delta)
        parts = (make, self.stepped & covered), (PlainSteps, self.stepped & ~covered)
        return [kind(transition, self.delta, stepped) for kind, stepped in parts if stepped.any()]


class _Filter(torch.autograd.Function):
    """Priors (time, batch, 5, obs) and states (time + 1, batch, 5, obs): the start, then all posteriors."""

    @staticmethod
    def forward(ctx: Any, constants: Constants, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        start, y, y_var, *parameters = tensors
        with torch.autocast(y.device.type, enabled=False):
            passes = Passes(constants.predict_steps(parameters), start, y, y_var, constants)
            priors, states = passes.forward(start)
        ctx.set_materialize_grads(False)
        ctx.constants, ctx.passes = constants, passes
        ctx.save_for_backward(*tensors, priors, states)
        return priors, states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, priors, states = ctx.saved_tensors
        if all(grad is None for grad in grads):
            return (None,) * (1 + len(tensors))
        with torch.autocast(priors.device.type, enabled=False):
            if torch.is_grad_enabled():
                return None, *_differentiable_gradients(ctx.constants, tensors, grads)
            found = ctx.passes.backward(priors, states, tensors[2], *grads)
            # Without predict steps, no parameter has a gradient.
            return None, *found, *(None for _ in tensors[len(found) :])


def _differentiable_gradients(
    constants: Constants, tensors: list[Tensor], grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Return gradients that have gradients, for ``create_graph=True``."""
    start, y, y_var, *parameters = tensors
    transition = with_parameters(constants.transition, parameters)
    series = (tensor.transpose(0, 1) for tensor in (y, y_var, *constants[1:]))
    prior, posterior = (pack(belief).transpose(0, 1) for belief in filter_stepwise(transition, unpack(start), *series))
    pairs = zip((prior, torch.cat([start[None], posterior])), grads, strict=True)
    outputs, given = zip(*((output, grad) for output, grad in pairs if grad is not None), strict=True)
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in tensors)


class Passes:
    """The forward and the backward pass.

    Args:
        parts: the predict steps. Each has other rows.
        start: belief before the first time.
        y: latent observations.
        y_var: their variances.
        constants: the other arguments.
    """

    def __init__(
        self,
        parts: list[PredictSteps],
        start: Float[Tensor, "batch 5 obs"],
        y: Float[Tensor, "time batch obs"],
        y_var: Float[Tensor, "time batch obs"],
        constants: Constants,
    ) -> None:
        self.parts, self.stepped, self.clamp = parts, constants.stepped, PackedClamp(start)
        self.update = UpdateSteps(y, y_var, constants.mask, self.clamp)

    def forward(self, start: Float[Tensor, "batch 5 obs"]) -> tuple[Tensor, Tensor]:
        """Return priors and states."""
        times, batch = self.stepped.shape
        priors, states = start.new_empty(times, *start.shape), start.new_empty(times + 1, *start.shape)
        states[0] = start
        beliefs = states.unbind(0)
        for t, prior in enumerate(priors.unbind(0)):
            active = [part for part in self.parts if part.rows.counts[t]]
            if sum(part.rows.counts[t] for part in active) < batch:
                prior.copy_(beliefs[t])
            for part in active:
                self._predict(part, t, beliefs[t], prior)
            self.update.forward(t, prior, beliefs[t + 1])
        return priors, states

    def _predict(
        self, part: PredictSteps, t: int, before: Float[Tensor, "batch 5 obs"], prior: Float[Tensor, "batch 5 obs"]
    ) -> None:
        """Write the priors of the rows of one part."""
        rows = part.rows.select(t, before)
        out = prior if part.rows.whole else torch.empty_like(rows)
        part.forward(t, rows, out)
        self.clamp.apply_(out)
        if not part.rows.whole:
            prior.index_copy_(0, part.rows.series[t], out)

    def backward(
        self,
        priors: Float[Tensor, "time batch 5 obs"],
        states: Float[Tensor, "states batch 5 obs"],
        y_var: Float[Tensor, "time batch obs"],
        grad_priors: Float[Tensor, "time batch 5 obs"] | None,
        grad_states: Float[Tensor, "states batch 5 obs"] | None,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients by start, y, y_var and all parameters."""
        passes = self.clamp.inside(priors) | ~self.stepped[:, :, None, None]
        self.update.prepare(priors, states[1:], passes)
        for part in self.parts:
            part.prepare(priors, states)
        by_prior = None if grad_priors is None else (grad_priors * passes).unbind(0)
        grads = torch.zeros_like(states) if grad_states is None else grad_states.clone()
        by_belief = grads.unbind(0)
        for t in reversed(range(len(priors))):
            grad = self.update.backward(t, finite_(by_belief[t + 1]))
            if by_prior is not None:
                grad += by_prior[t]
            by_belief[t].add_(self._predict_backward(t, finite_(grad)))
        by_y, by_var = self.update.gradients(grads[1:], y_var)
        parameters = [sum(found) for found in zip(*(part.gradients() for part in self.parts), strict=True)]
        return tuple(map(finite_, (grads[0], by_y, by_var, *parameters)))

    def _predict_backward(self, t: int, grad: Float[Tensor, "batch 5 obs"]) -> Float[Tensor, "batch 5 obs"]:
        """Return the gradient by the belief before the step."""
        before = grad
        for part in self.parts:
            if part.rows.counts[t]:
                before = part.rows.replace(t, before, part.backward(t, grad))
        return before
