"""Elementwise Kullback-Leibler divergences between Gaussians."""

from torch import Tensor

from cru.shapes import Float


def gaussian_kl(
    mean: Float[Tensor, "*shape"],
    var: Float[Tensor, "*shape"],
    other_mean: Float[Tensor, "*shape"],
    other_var: Float[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """KL(N(mean, var) ‖ N(other_mean, other_var)) = ½ (log v'/v + (v + (m - m')²) / v' - 1)."""
    return 0.5 * ((other_var / var).log() + (var + (mean - other_mean).square()) / other_var - 1)


def standard_normal_kl(mean: Float[Tensor, "*shape"], log_var: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """KL(N(mean, e^log_var) ‖ N(0, 1)) = ½ (e^l + m² - 1 - l)."""
    return 0.5 * (log_var.exp() + mean.square() - 1 - log_var)
