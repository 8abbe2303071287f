"""The RKN one step ahead: a question and its answer at the same time take one transition."""

import torch

from cru.layers import RKN


def test_a_question_before_each_observation_changes_nothing() -> None:
    layer = RKN(3, 6).double()
    x = torch.randn(1, 3, 3, dtype=torch.float64)
    times = torch.arange(3, dtype=torch.float64)[None]
    twice = torch.tensor([0, 1, 1, 2, 2])
    asked = torch.tensor([[True, False, True, False, True]])
    states = layer(x[:, twice], times[:, twice], asked)[0]
    torch.testing.assert_close(states[:, [0, 2, 4]], layer(x, times)[0])
