"""The contender of benchmarks/models.py, the model with the filter as printed, is the same model."""

import copy
import runpy
from pathlib import Path

import pytest
import torch

from cru.data import regression
from cru.data.datasets import pendulum

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["cru", "f-cru", "rkn"])
def test_the_literal_filter_gives_the_same_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    program = runpy.run_path(str(BENCHMARKS / "models.py"))
    model = program["made"](name, "pendulum-regression").double()
    batch = regression(pendulum.generate(pendulum.REGRESSION, 2), target="sin_cos").batch(range(2), dtype=torch.float64)
    literal = copy.deepcopy(model)
    literal.layer = program["LiteralFilter"](literal.layer)
    torch.testing.assert_close(model.loss(batch), literal.loss(batch), rtol=1e-6, atol=0)
