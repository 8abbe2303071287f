"""The filter of a complete sequence, with alternating predict and update steps (algorithm 1)."""

import torch
from torch import Tensor

from cru.functional import sequence_gradient
from cru.functional.belief import Belief
from cru.functional.stepwise import filter_stepwise, stacked, where
from cru.functional.tracing import not_traced
from cru.functional.transition import Transition
from cru.shapes import Bool, Float


@not_traced  # to trace an unrolled sequence would take minutes
def filter_sequence(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    stepped: Bool[Tensor, "batch time"],
) -> tuple[Belief, Belief]:
    """Compute priors and posteriors over (batch, time), step by step, on any device.

    `cru.native.filter_sequence` (compiled, CPU) and `filter_sequence_reference` (literal) compute the same. The
    first derivative is that of `filter_with_custom_gradient`. `filter_stepwise` has all others.

    Args:
        transition: the predict step.
        start: belief before the first time.
        y: latent observations.
        y_var: their variances.
        mask: True where observed.
        delta: the gap before each time.
        stepped: True where the predict step runs before the update. Elsewhere the prior is the previous belief.

    Returns:
        Priors and posteriors.
    """
    custom = sequence_gradient.available(transition, y, delta)
    run = sequence_gradient.filter_with_custom_gradient if custom else filter_stepwise
    return run(transition, start, y, y_var, mask, delta, stepped)


def filter_sequence_reference(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    continued: bool = False,
) -> tuple[Belief, Belief]:
    """Compute algorithm 1 literally, with the reference predict steps and the equations of appendix B.

    ``continued`` means that ``start`` is the posterior of an earlier time. Then the predict step also runs over the
    first gap. The other arguments are those of `filter_sequence`.
    """
    belief, priors, posteriors = start, [], []
    for t in range(y.shape[1]):
        prior = transition.predict_reference(belief, delta[:, t]) if t > 0 or continued else belief
        k_upper = prior.upper / (prior.upper + y_var[:, t])
        k_lower = prior.side / (prior.upper + y_var[:, t])
        residual = y[:, t] - prior.mean[:, : y.shape[-1]]
        updated = Belief(
            prior.mean + torch.cat([k_upper, k_lower], -1) * torch.cat([residual, residual], -1),
            (1 - k_upper) * prior.upper,
            prior.lower - k_lower * prior.side,
            (1 - k_upper) * prior.side,
        )
        belief = where(mask[:, t], updated, prior)
        priors.append(prior)
        posteriors.append(belief)
    return stacked(priors), stacked(posteriors)
