"""The filter of a complete sequence, one step after another, differentiated by PyTorch."""

import torch
from torch import Tensor

from cru.functional.belief import Belief, finite_gradient, finite_gradients
from cru.functional.transition import Transition, with_finite_gradients
from cru.functional.update import update
from cru.shapes import Bool, Float


def filter_stepwise(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    stepped: Bool[Tensor, "batch time"],
) -> tuple[Belief, Belief]:
    """Compute priors and posteriors with any kind of derivative: of any order, by the gaps, in forward mode.

    The arguments are those of `filter_sequence`.
    """
    transition, plan = with_finite_gradients(transition), transition.plan(delta)
    y, y_var = finite_gradient(y), finite_gradient(y_var)
    belief, priors, posteriors = finite_gradients(start), [], []
    steps = (tensor.unbind(1) for tensor in (y, y_var, mask, delta, stepped))
    for y_t, var_t, mask_t, delta_t, stepped_t in zip(*steps, strict=True):
        predicted = transition.predict(belief, delta_t, plan)
        prior = where(stepped_t[:, None], predicted, belief)
        belief = update(prior, y_t, var_t, mask_t)
        priors.append(prior)
        posteriors.append(belief)
    return stacked(priors), stacked(posteriors)


def where(condition: Bool[Tensor, "batch #obs"], yes: Belief, no: Belief) -> Belief:
    """Select each field by the condition. The mean has two entries for each entry of the condition."""
    both = condition if condition.shape[-1] == 1 else torch.cat([condition, condition], -1)
    choices = zip((both, condition, condition, condition), yes[:4], no[:4], strict=True)
    return Belief(*(torch.where(c, a, b) for c, a, b in choices))


def stacked(beliefs: list[Belief]) -> Belief:
    """Stack the beliefs of all steps into one belief over (batch, time)."""
    return Belief(*(torch.stack(field, 1) for field in zip(*(b[:4] for b in beliefs), strict=True)))
