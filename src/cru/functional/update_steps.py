"""The update steps of a sequence on packed beliefs, with a custom gradient.

The maths is in `update.py`, and `docs/explanation/backward-passes.md` derives the gradient.
"""

import torch
from torch import Tensor

from cru.functional.packed import LOWER, SIDE, UPPER, PackedClamp
from cru.functional.steps import Steps
from cru.functional.update import MAX_VARIANCE, MIN_VARIANCE
from cru.shapes import Bool, Float


class UpdateSteps(Steps):
    """The update at each time.

    Args:
        y: latent observations.
        y_var: their variances.
        mask: True where observed.
        clamp: the clamp of the posteriors.
    """

    def __init__(
        self,
        y: Float[Tensor, "time batch obs"],
        y_var: Float[Tensor, "time batch obs"],
        mask: Bool[Tensor, "time batch obs"],
        clamp: PackedClamp,
    ) -> None:
        self.clamp = clamp
        self.y, self.var = torch.where(mask, y, 0.0), y_var.clamp(MIN_VARIANCE, MAX_VARIANCE)
        self.observed, self.missing = mask.to(y.dtype), (~mask).to(y.dtype)
        self.steps = list(zip(*(part.unbind(0) for part in self._parts()), strict=True))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.y, self.var, self.observed, self.missing

    def forward(self, t: int, prior: Float[Tensor, "batch 5 obs"], posterior: Float[Tensor, "batch 5 obs"]) -> None:
        """Write the posterior of step ``t``. With m = 1 where observed, else 0, and the observation variance r:

        ι = m / (u + r),  k_u = u ι,  k_l = s ι,  κ = r ι + (1 - m) = 1 - k_u.

        μ_u⁺ = μ_u + k_u (y - μ_u),  μ_l⁺ = μ_l + k_l (y - μ_u),  u⁺ = κ u,  s⁺ = κ s,  l⁺ = max(l - k_l s, κ l).
        """
        y, var, observed, missing = self.steps[t]
        inverse = observed / (prior[:, UPPER] + var)
        gain = prior[:, UPPER:LOWER] * inverse.unsqueeze(1)
        kept = torch.addcmul(missing, var, inverse)
        torch.addcmul(prior[:, :UPPER], gain, (y - prior[:, 0]).unsqueeze(1), out=posterior[:, :UPPER])
        torch.mul(prior[:, UPPER:], kept.unsqueeze(1), out=posterior[:, UPPER:])
        lower = posterior[:, LOWER]
        torch.maximum(torch.addcmul(prior[:, LOWER], gain[:, 1], prior[:, SIDE], value=-1), lower, out=lower)
        self.clamp.apply_(posterior)

    def prepare(
        self,
        priors: Float[Tensor, "time batch 5 obs"],
        posteriors: Float[Tensor, "time batch 5 obs"],
        passes: Bool[Tensor, "time batch 5 obs"],
    ) -> None:
        """Prepare a backward pass.

        Args:
            priors: the priors of all steps.
            posteriors: the posteriors of all steps.
            passes: True where the gradient by the prior enters the predict step.
        """
        self.priors, self.posteriors, self.passes = priors, posteriors, passes
        self.set_span(5 * priors[0].numel(), priors.device)

    def start_span(self, first: int, last: int) -> None:
        """Compute the factors of the gradient for the steps from ``last`` - 1 to ``first``.

        The update is elementwise. So its transposed Jacobian has 5 × 5 entries for each series and dimension. None of
        them depends on the gradient.
        """
        prior = self.priors[first:last]
        y, var, observed, missing = (part[first:last] for part in self._parts())
        mean, _, upper, side, lower = prior.unbind(2)
        inverse = observed / (upper + var)
        k_lower, ratio = side * inverse, var * inverse
        kept, pull = ratio + missing, (y - mean) * inverse
        factors = prior.new_zeros(*prior.shape[:2], 5, 5, prior.shape[-1])  # [gradient by posterior, by prior]
        by_mean_upper, by_mean_lower, by_upper, by_side, by_lower = factors.unbind(2)
        by_mean_upper[:, :, 0], by_mean_upper[:, :, UPPER] = kept, pull * ratio
        by_mean_lower[:, :, 0], by_mean_lower[:, :, 1] = -k_lower, 1
        by_mean_lower[:, :, UPPER], by_mean_lower[:, :, SIDE] = -pull * k_lower, pull
        by_upper[:, :, UPPER] = kept.square()
        by_side[:, :, UPPER], by_side[:, :, SIDE] = -k_lower * ratio, kept
        by_lower[:, :, UPPER], by_lower[:, :, SIDE], by_lower[:, :, LOWER] = k_lower.square(), -2 * k_lower, 1
        by_lower *= (lower - k_lower * side >= kept * lower).unsqueeze(2)  # at the floor, l⁺ is constant
        factors *= self.clamp.inside(self.posteriors[first:last]).unsqueeze(3)
        factors *= self.passes[first:last].unsqueeze(2)
        self.factors = factors.unbind(0)

    def backward(self, t: int, grad: Float[Tensor, "batch 5 obs"]) -> Float[Tensor, "batch 5 obs"]:
        """Return the gradient by the prior from the gradient by the posterior."""
        self.ensure_span(t)
        return (self.factors[t - self.first] * grad.unsqueeze(2)).sum(1)

    def gradients(
        self, grads: Float[Tensor, "time batch 5 obs"], y_var: Float[Tensor, "time batch obs"]
    ) -> tuple[Float[Tensor, "time batch obs"], Float[Tensor, "time batch obs"]]:
        """Return the gradients by ``y`` and by ``y_var``, from those by all posteriors."""
        mean, _, upper, side, lower = self.priors.unbind(2)
        inverse = self.observed / (upper + self.var)
        k_upper, k_lower, pull = upper * inverse, side * inverse, (self.y - mean) * inverse
        kept = self.var * inverse + self.missing
        by_mean_upper, by_mean_lower, by_upper, by_side, by_lower = (grads * self.clamp.inside(self.posteriors)).unbind(
            2
        )
        by_lower = by_lower * (lower - k_lower * side >= kept * lower)
        by_upper = k_upper * (by_upper * k_upper - by_mean_upper * pull)
        by_lower = k_lower * (by_lower * k_lower + by_side * k_upper - by_mean_lower * pull)
        inside = (y_var >= MIN_VARIANCE) & (y_var <= MAX_VARIANCE)
        return by_mean_upper * k_upper + by_mean_lower * k_lower, (by_upper + by_lower) * inside
