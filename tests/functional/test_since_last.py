"""Time since the last observation, against the recursion of Che et al. 2018."""

import torch

from cru.functional.carry_forward import since_last


def test_it_is_the_recursion() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(3, 8, 2, generator=generator) < 0.4
    times = torch.rand(3, 8, generator=generator, dtype=torch.float64).cumsum(1) + 5
    found = since_last(times, mask)
    elapsed = torch.zeros(3, 2, dtype=torch.float64)
    for t in range(8):
        if t > 0:
            gap = (times[:, t] - times[:, t - 1])[:, None]
            elapsed = torch.where(mask[:, t - 1], gap, gap + elapsed)
        torch.testing.assert_close(found[:, t], elapsed)
