"""Divergences against torch.distributions."""

import torch
from torch.distributions import Normal, kl_divergence

from cru.functional.divergence import gaussian_kl, standard_normal_kl


def test_divergences() -> None:
    generator = torch.Generator().manual_seed(0)
    m, n = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    v, w = torch.rand(2, 50, generator=generator, dtype=torch.float64) + 0.1
    torch.testing.assert_close(gaussian_kl(m, v, n, w), kl_divergence(Normal(m, v.sqrt()), Normal(n, w.sqrt())))
    expected = kl_divergence(Normal(m, v.sqrt()), Normal(torch.zeros_like(m), torch.ones_like(m)))
    torch.testing.assert_close(standard_normal_kl(m, v.log()), expected)
