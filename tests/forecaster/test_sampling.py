import numpy as np
import pandas as pd

from cru.forecaster import sampling
from tests.forecaster.conftest import stations


def test_trajectories_spread_as_the_forecast_does_and_hang_together(trained):
    table = stations(1, 25, seed=21)
    drawn = trained.sample(300, table, horizon="12D", every="2D", seed=1)
    assert drawn.columns.tolist() == ["sample", "station", "date", "variable", "value"]
    assert len(drawn) == 300 * 6 * 2 and sorted(drawn["sample"].unique()) == list(range(300))
    high = drawn[drawn["variable"] == "high"].pivot(index="sample", columns="date", values="value")
    said = trained.forecast(table, horizon="12D", every="2D")
    said = said[said["variable"] == "high"].set_index("date")
    first = said.iloc[0]
    assert abs(high.iloc[:, 0].mean() - first["mean"]) < 0.5 * first["std"]
    assert 0.6 < high.iloc[:, 0].std() / first["std"] < 1.5
    assert (high.std() > 0).all() and high.iloc[:, -1].std() > high.iloc[:, 0].std()
    steps = high.corr().to_numpy()
    assert np.diag(steps, 1).min() > 0.3  # neighbours in time are alike, as in a wander


def test_the_seed_decides(trained):
    table = stations(3, 25, seed=22)
    one, same, other = (trained.sample(2, table, horizon="4D", every="2D", seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(one, same)
    assert not np.allclose(one["value"], other["value"])


def test_what_was_read_stays_as_it_is(trained):
    table = stations(1, 25, seed=23)
    known = table.dropna().iloc[7]
    drawn = trained.sample(3, table, at=[known["date"]])
    np.testing.assert_allclose(drawn[drawn["variable"] == "high"]["value"], known["high"], rtol=1e-6)


def test_going_on_from_a_state_draws_what_going_through_all_again_does(trained, monkeypatch):
    table = pd.concat([stations(2, 25, seed=24), stations(1, 40, seed=25).assign(station="long")])
    ahead = {"horizon": "6D", "every": "2D", "seed": 3}
    quick = trained.sample(4, table, **ahead)
    monkeypatch.setattr(sampling, "_onward", None)  # not to be called
    monkeypatch.setattr(sampling, "_later", lambda *_: None)
    slow = trained.sample(4, table, **ahead)
    keys = ["sample", "station", "date", "variable"]
    pd.testing.assert_frame_equal(quick[keys], slow[keys])
    np.testing.assert_allclose(quick["value"], slow["value"], rtol=1e-3, atol=1e-3)
