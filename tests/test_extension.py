"""A new model or dataset touches two places: its own module, and one entry of a registry."""

import sys

import numpy as np
import pytest

import cru
from cru import Forecaster
from cru.data import Splits, make_series
from cru.data.datasets import DATASETS
from cru.data.datasets.registry import Dataset
from cru.data.random import generator
from cru.models.registry import MODELS, Entry
from cru.reporting.figures.style import model_style
from cru.reporting.paper_tables import in_order
from cru.training import load_model, run
from tests.cli.helpers import done
from tests.forecaster.conftest import stations
from tests.training.tiny import tiny_settings, tiny_splits

MODULE = """
from dataclasses import dataclass

import torch

from cru.models import Model, ModelConfig, OutputHead, Prediction


@dataclass(frozen=True, kw_only=True)
class DriftConfig(ModelConfig):
    units: int = 4


class DriftModel(Model):
    Config = DriftConfig
    pointwise = True

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.hidden = torch.nn.Linear(spec.input_size, config.units)
        size = spec.target_size
        self.output = OutputHead(spec, torch.nn.Linear(config.units, size), torch.nn.Linear(config.units, size), "exp")

    def forward(self, batch, *, intermediates=False):
        states = torch.tanh(self.hidden(self.inputs(batch).flatten(2)))
        return Prediction(*self.output(states, valid=batch.valid))
"""


@pytest.fixture
def drift(tmp_path, monkeypatch) -> str:
    """The two places: a module, and an entry."""
    (tmp_path / "drift_model.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MODELS, "drift", Entry("drift_model", "DriftModel", "a new model", "Drift", package=""))
    yield "drift"
    sys.modules.pop("drift_model", None)


def test_a_model_touches_two_places(drift, tmp_path) -> None:
    assert "drift" in done("list") and "a new model" in done("models") and "units" in done("models", "drift")
    assert model_style("drift").name == "Drift"
    assert len({(style.light, style.dash) for style in map(model_style, MODELS)}) == len(MODELS)
    assert in_order(["mean", "drift", "cru"]) == ["cru", "drift", "mean"]
    record = run(tiny_settings("drift", options={"units": 3}), tmp_path / "r", splits=tiny_splits())
    assert record["epochs"] == 3 and record["model"] == "drift"
    assert load_model(tmp_path / "r").config.units == 3  # no permission: it is registered
    fitted = Forecaster("drift", base=None, epochs=1, minutes=None).fit(stations(8), id="station", time="date")
    fitted.save(tmp_path / "model")
    assert len(Forecaster.load(tmp_path / "model").forecast(horizon="2D"))


def load_clocks(*, data_dir=None, cache=None, seed=0, progress=False, count: int = 12) -> Splits:
    """A dataset is a function from its options to three sets of series."""
    times = np.tile(np.arange(6.0), count)
    values = np.sin(times)[:, None] + 0.1 * generator(seed, "clocks").standard_normal((len(times), 1))
    offsets = np.arange(count + 1, dtype=np.int64) * 6
    return cru.data.split(make_series(times, values, offsets, ids=range(count), names=["x"]), seed=seed)


def test_a_dataset_touches_two_places(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = Dataset(name="clocks", about="new series", source="simulated", time_scale=0.5, version=1, load=load_clocks)
    monkeypatch.setitem(DATASETS, "clocks", entry)
    assert "new series" in done("data", "list") and "clocks" in done("list")
    assert "is ready" in done("data", "prepare", "clocks")
    assert "Picture: clocks.png" in done("data", "show", "clocks")
    assert len(cru.data.load("clocks", count=20).train) > len(cru.data.load("clocks").train)
    (tmp_path / "mine.toml").write_text('[data]\ndataset = "clocks"\ntask = "interpolation"\n[models.gru-dt]\n')
    short = ["--set", "training.epochs=1", "--set", "data.options.count=15"]
    words = ["run", "mine.toml", "--model", "gru-dt", "--out", "r", "--ledger", "ledger.jsonl", *short]
    assert "Stored in" in done(*words)
    assert load_model("r").spec.time_scale == 0.5
