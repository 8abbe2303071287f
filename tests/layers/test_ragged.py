"""Stepping through a ragged batch, and reversing each series within itself."""

import torch

from cru.layers.ragged import Ragged, reversed_series


def test_cumulative_sums_step_by_step() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 0, 7, 5, 1])
    running = torch.arange(7) < lengths[:, None]
    x = torch.where(running, torch.randn(5, 7, generator=generator), 0.0)
    plan, total, sums = Ragged.of(running), torch.zeros(5, 1), []
    for x_t in plan.steps(x):
        total = total[: len(x_t)] + x_t[:, None]
        sums.append(total)
    assert sum(plan.counts) == int(lengths.clamp(min=1).sum())
    torch.testing.assert_close(plan.join(sums)[..., 0], x.cumsum(1))


def test_each_series_is_reversed_within_itself() -> None:
    x = torch.arange(10.0).view(2, 5)
    found = reversed_series(x, torch.tensor([2, 4]))
    assert torch.equal(found, torch.tensor([[2.0, 1, 0, 0, 0], [9.0, 8, 7, 6, 5]]))
