import dataclasses

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
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


def test_every_draw_is_spread_as_predict_says(trained):
    """A walk of many steps, whose single errors would add up."""
    table, ahead = stations(3, 25, seed=26), {"horizon": "40D", "every": "2D"}
    drawn = trained.sample(400, table, **ahead, seed=2)
    said = trained.forecast(table, **ahead, level=[50, 90]).set_index(["station", "date", "variable"])
    found = drawn.groupby(["station", "date", "variable"])["value"]
    for name, p in (("lo-90", 0.05), ("lo-50", 0.25), ("hi-50", 0.75), ("hi-90", 0.95)):
        apart = (found.quantile(p) - said[name]) / said["std"]
        assert apart.abs().max() < 0.15


def test_a_single_trajectory_is_like_any_other():
    """Where most draws are equal, too: who comes first among equals is a matter of chance."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"s": np.repeat(np.arange(400), 12), "t": np.tile(np.arange(12.0), 400)})
    table["x"] = (rng.random(len(table)) < 0.4) * 1.0
    model = Forecaster("mean", progress=False).fit(table, id="s", time="t")
    one, many = (model.sample(n, horizon=1, every=1.0)["value"].mean() for n in (1, 50))
    assert one == pytest.approx(many, abs=0.08)


def test_nothing_asked_nothing_drawn(trained):
    for at in ({}, {"s03": []}, pd.DataFrame({"station": [], "date": pd.to_datetime([])})):
        drawn = trained.sample(2, at=at)
        assert len(drawn) == 0 and drawn.columns.tolist() == ["sample", "station", "date", "variable", "value"]


def test_a_part_at_a_time_where_there_is_much_to_draw(trained, monkeypatch):
    table = stations(5, 25, seed=28)
    whole = trained.sample(60, table, horizon="4D", every="2D")
    monkeypatch.setattr(sampling, "SAMPLING", dataclasses.replace(sampling.SAMPLING, max_values=20_000))
    parts = trained.sample(60, table, horizon="4D", every="2D")
    keys = ["sample", "station", "date", "variable"]
    pd.testing.assert_frame_equal(parts[keys], whole[keys])
    middle = [frame.groupby(keys[1:])["value"].median() for frame in (whole, parts)]
    assert np.corrcoef(*middle)[0, 1] > 0.95  # other draws of the same
    monkeypatch.setattr(sampling, "_later", lambda *_: False)
    again = trained.sample(60, table, horizon="4D", every="2D")
    pd.testing.assert_frame_equal(again[keys], whole[keys])
    assert np.corrcoef(middle[0], again.groupby(keys[1:])["value"].median())[0, 1] > 0.95


def test_variables_that_go_together_are_drawn_together():
    rng = np.random.default_rng(0)
    table = stations(30, 25, seed=27)
    table["low"] = table["high"] + rng.normal(0, 0.1, len(table))
    model = Forecaster("last-value", progress=False).fit(table, id="station", time="date")
    drawn = model.sample(300, table[table["station"] == "s03"], horizon="8D", every="8D")
    both = drawn.pivot(index="sample", columns="variable", values="value")
    assert both.corr().iloc[0, 1] > 0.9


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
    monkeypatch.setattr(sampling, "_ensemble_from_state", None)  # not to be called
    monkeypatch.setattr(sampling, "_later", lambda *_: None)
    slow = trained.sample(4, table, **ahead)
    keys = ["sample", "station", "date", "variable"]
    pd.testing.assert_frame_equal(quick[keys], slow[keys])
    np.testing.assert_allclose(quick["value"], slow["value"], rtol=1e-3, atol=1e-3)
