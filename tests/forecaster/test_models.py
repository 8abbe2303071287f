import numpy as np
import pytest

from cru import Forecaster
from cru.forecaster import fitting
from cru.models import MODELS
from tests.forecaster.conftest import stations


@pytest.mark.parametrize("name", MODELS)
def test_every_registered_model_can_be_used(name, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "EPOCH", (16, 16))  # one step
    table = stations(20, 12, seed=2)
    model = Forecaster(name, epochs=1, progress=False).fit(table, id="station", time="date")
    model.save(tmp_path / "model")
    said = Forecaster.load(tmp_path / "model").forecast(horizon="6D", every="3D")
    assert len(said) == 20 * 2 * 2 and np.isfinite(said.drop(columns=["station", "date", "variable"])).all().all()
    assert len(model.impute(table)) == int(table["low"].isna().sum())
