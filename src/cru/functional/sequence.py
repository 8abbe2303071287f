"""The filter over a whole sequence: alternate predict and update (algorithm 1)."""

import torch
from torch import Tensor

from cru.functional.belief import Belief, finite_gradient, finite_gradients
from cru.functional.transition import Transition, with_finite_gradients
from cru.functional.update import update
from cru.shapes import Bool, Float


@torch.compiler.disable  # type: ignore[untyped-decorator]  # to trace an unrolled sequence would take minutes
def filter_sequence(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    moves: Bool[Tensor, "batch time"],
) -> tuple[Belief, Belief]:
    """Compute priors and posteriors over (batch, time), step by step, on any device.

    `cru.native.filter_sequence` (compiled, CPU) and `filter_sequence_reference` (literal) compute the same.

    Args:
        transition: the predict step.
        start: belief before the first time.
        y: latent observations.
        y_var: their variances.
        mask: True where observed.
        delta: the gap before each time.
        moves: True where the predict step runs before the update. Elsewhere the prior is the previous belief.

    Returns:
        Priors and posteriors.
    """
    transition, plan = with_finite_gradients(transition), transition.plan(delta)
    y, y_var = finite_gradient(y), finite_gradient(y_var)
    belief, priors, posteriors = finite_gradients(start), [], []
    steps = (tensor.unbind(1) for tensor in (y, y_var, mask, delta, moves))
    for y_t, var_t, mask_t, delta_t, moves_t in zip(*steps, strict=True):
        predicted = transition.predict(belief, delta_t, plan)
        prior = _where(moves_t[:, None], predicted, belief)
        belief = update(prior, y_t, var_t, mask_t)
        priors.append(prior)
        posteriors.append(belief)
    return stacked(priors), stacked(posteriors)


def filter_sequence_reference(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    continued: bool = False,
) -> tuple[Belief, Belief]:
    """Follow algorithm 1 literally, with the reference predict steps and the equations of appendix B.

    ``continued`` means that ``start`` is the posterior of an earlier time. Then the predict step also runs over the
    first gap.
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
        belief = _where(mask[:, t], updated, prior)
        priors.append(prior)
        posteriors.append(belief)
    return stacked(priors), stacked(posteriors)


def _where(condition: Bool[Tensor, "batch #obs"], yes: Belief, no: Belief) -> Belief:
    """Select each field by the condition. The mean has two entries for each entry of the condition."""
    both = condition if condition.shape[-1] == 1 else torch.cat([condition, condition], -1)
    choices = zip((both, condition, condition, condition), yes[:4], no[:4], strict=True)
    return Belief(*(torch.where(c, a, b) for c, a, b in choices))


def stacked(beliefs: list[Belief]) -> Belief:
    """Stack the beliefs of all steps into one belief over (batch, time)."""
    return Belief(*(torch.stack(field, 1) for field in zip(*(b[:4] for b in beliefs), strict=True)))
