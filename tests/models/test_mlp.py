"""Quantile bins of the inputs of the perceptrons."""

import pytest
import torch

from cru.models import Spec
from cru.models.mlp import MLPConfig, MLPModel

SPEC = Spec(input_shape=(3,), target_shape=(1,), regression=True)


def model(**options) -> MLPModel:
    return MLPModel(SPEC, MLPConfig(**options))


def test_bins_hold_equal_shares_of_the_inputs_that_are_known():
    made = model(binned=[2], bins=4)
    x = torch.rand(1000, 3).square() * 10
    missing = torch.rand(1000) < 0.3
    x[missing, 2] = torch.nan
    made.find_bins(x)
    known = x[~missing, 2]
    inside = [
        ((known >= a) & (known <= b)).float().mean() for a, b in zip(made.edges[0], made.edges[0][1:], strict=False)
    ]
    assert torch.stack(inside) == pytest.approx(torch.full((4,), 0.25), abs=0.01)


def test_a_value_fills_the_bins_below_it():
    made = model(binned=[0, 1], bins=2)
    made.edges.copy_(torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 0.0]]))
    encoded = made.encode(torch.tensor([[2.0, 5.0, 7.0], [-1.0, 0.0, 7.0]]))
    assert encoded.tolist() == [[2.0, 5.0, 7.0, 1.0, 0.5, 1.0, 1.0], [-1.0, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0]]


def test_without_bins_the_inputs_stay_as_they_are():
    x = torch.randn(4, 3)
    assert model().encode(x) is x


@pytest.mark.parametrize("binned", [[3], [-1]])
def test_numbers_that_are_no_inputs(binned):
    with pytest.raises(ValueError, match="`binned` must be indices of inputs"):
        model(binned=binned)
