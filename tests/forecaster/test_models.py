import numpy as np
import pytest

from cru import Forecaster
from cru.models import MODELS
from tests.forecaster.conftest import stations


@pytest.mark.parametrize("name", MODELS)
def test_every_registered_model_can_be_used(name, tmp_path, short_fit):
    table = stations(20, 12, seed=2)
    model = Forecaster(name, epochs=1, progress=False).fit(table, id="station", time="date")
    model.save(tmp_path / "model")
    loaded = Forecaster.load(tmp_path / "model")
    said = loaded.forecast(horizon="6D", every="3D")
    assert len(said) == 20 * 2 * 2 and np.isfinite(said.drop(columns=["station", "date", "variable"])).all().all()
    assert len(model.impute(table)) == int(table["low"].isna().sum())
    if loaded.model_.streams or loaded.model_.causal:
        judged = loaded.anomalies(table)
        assert len(judged) == int(table[["high", "low"]].notna().sum().sum()) and judged["p_value"].between(0, 1).all()
    else:
        with pytest.raises(ValueError, match="must be predicted from earlier observations"):
            loaded.anomalies(table)
    if hasattr(loaded.model_, "layer") and hasattr(loaded.model_.layer, "components"):
        parts = loaded.components(horizon="6D", every="3D")
        total = parts.groupby(["station", "date", "variable"])["mean"].sum()
        expected = said.set_index(["station", "date", "variable"])["mean"].reindex(total.index)
        np.testing.assert_allclose(total, expected, atol=1e-6)
    else:
        with pytest.raises(ValueError, match="components must come from a structural model"):
            loaded.components()
