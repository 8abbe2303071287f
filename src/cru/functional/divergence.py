"""Elementwise Kullback-Leibler divergences between Gaussians."""

from torch import Tensor

from cru.shapes import Float


def gaussian_kl(
    mean: Float[Tensor, "*shape"],
    var: Float[Tensor, "*shape"],
    other_mean: Float[Tensor, "*shape"],
    other_var: Float[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """Compute KL(N(m, v) ‖ N(m', v')) = ½ (log v'/v + (v + (m - m')²) / v' - 1).

    Args:
        mean: m.
        var: v.
        other_mean: m'.
        other_var: v'.
    """
    return 0.5 * ((other_var / var).log() + (var + (mean - other_mean).square()) / other_var - 1)


def standard_normal_kl(mean: Float[Tensor, "*shape"], log_var: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute KL(N(m, e^l) ‖ N(0, 1)) = ½ (e^l + m² - 1 - l) of ``mean`` m and ``log_var`` l."""
    return 0.5 * (log_var.exp() + mean.square() - 1 - log_var)
