from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cru import Forecaster
from cru.forecaster import fitting
from tests.forecaster.conftest import FAR, stations

LEVELS = ["lo-90", "lo-50", "hi-50", "hi-90"]


def last_values(table: pd.DataFrame) -> pd.DataFrame:
    return table.groupby("station")[["high", "low"]].last()  # of what is not missing


def test_a_forecast_is_a_long_frame_after_the_last_observation_of_each_series(table, repeater):
    said = repeater.forecast(horizon="10D", every="2D", level=[50, 90])
    names = ["station", "date", "variable", "mean", "median", "std", "lo-50", "hi-50", "lo-90", "hi-90"]
    assert said.columns.tolist() == names and len(said) == 24 * 5 * 2
    ends = table.groupby("station")["date"].max()
    days = (said["date"] - said["station"].map(ends)).dt.days
    assert sorted(days.unique()) == [2, 4, 6, 8, 10]
    expected = last_values(table).stack()
    found = said.set_index(["station", "variable"])["mean"]
    np.testing.assert_allclose(found, expected.loc[found.index], rtol=1e-5)  # float32 inside
    assert (np.diff(said[LEVELS].to_numpy(), axis=1) >= 0).all() and (said["std"] > 0).all()


def test_the_step_is_about_the_typical_gap_and_never_longer_than_the_horizon(table, repeater):
    gap = table.groupby("station")["date"].diff().median()
    said = repeater.forecast(horizon="30D")
    step = said["date"].drop_duplicates().sort_values().groupby(said["station"]).diff().dropna().min()
    assert step <= gap
    assert len(repeater.forecast(horizon="6h")) == 48


@FAR
def test_predict_between_before_and_after(table, repeater):
    one = table[table["station"] == "s03"]
    seen = one.dropna()
    middle = seen["date"].iloc[4] + (seen["date"].iloc[5] - seen["date"].iloc[4]) / 2
    late = one["date"].iloc[-1] + pd.Timedelta("400D")
    said = repeater.predict(one, at=[late, middle, one["date"].iloc[0] - pd.Timedelta("1D")])
    assert said["date"].is_monotonic_increasing and said["date"].iloc[-1] == late
    high = said[said["variable"] == "high"]["mean"].to_numpy()
    between = one[one["date"] <= middle]["high"].iloc[-1]
    assert high[1] == pytest.approx(between, rel=1e-5) and high[2] == pytest.approx(one["high"].iloc[-1], rel=1e-5)
    assert high[0] == pytest.approx(repeater.predict(stations(1, seed=9), at={"new": ["2024-05-01"]})["mean"][0])


def test_times_for_each_series_as_a_dictionary_or_a_frame(table, repeater):
    wanted = {"s00": ["2024-03-01", "2024-02-01"], "s07": ["2024-04-01T12:00"], "unheard of": ["2024-01-01"]}
    said = repeater.predict(table, at=wanted)
    rows = said[said["variable"] == "high"]
    assert rows["station"].tolist() == ["s00", "s00", "s07", "unheard of"]
    assert rows["date"].tolist()[2] == pd.Timestamp("2024-04-01T12:00")
    flat = [(name, pd.Timestamp(time)) for name, times in wanted.items() for time in times]
    frame = pd.DataFrame(flat, columns=["station", "date"])
    pd.testing.assert_frame_equal(repeater.predict(table, at=frame), said)


def test_impute_answers_every_missing_value_and_no_other(table, repeater):
    said = repeater.impute(table)
    missing = table[table["low"].isna()]
    assert said["variable"].unique().tolist() == ["low"] and len(said) == len(missing)
    merged = missing.merge(said, on=["station", "date"], how="inner")
    assert len(merged) == len(missing)
    filled = table.groupby("station")["low"].ffill()[missing.index]
    known = filled.notna().to_numpy()
    np.testing.assert_allclose(merged["mean"][known], filled[known], rtol=1e-5)
    assert len(repeater.impute(table.dropna())) == 0


def test_imputing_and_predicting_are_one(table, trained):
    filled = trained.impute(table, level=[80])
    at = filled[["station", "date"]]
    said = trained.predict(table, at=at, level=80)
    pd.testing.assert_frame_equal(said[said["variable"] == "low"].reset_index(drop=True), filled)


def test_uncertainty_grows_with_a_gap_and_shrinks_at_an_observation(trained):
    table = stations(10, 25, seed=5)
    table = table[table["date"] < "2024-02-15"]
    grow = trained.forecast(table, horizon="40D", every="4D")
    grow = grow[grow["variable"] == "high"].set_index(["station", "date"])["std"].unstack("station").to_numpy()
    by_lead = np.array([column[~np.isnan(column)] for column in grow.T])  # series, lead
    assert (np.diff(by_lead, axis=1) > 0).mean() > 0.95
    assert (by_lead[:, -1] > 1.5 * by_lead[:, 0]).all()
    ends = table.groupby("station")["date"].max()
    observation = pd.DataFrame({"station": ends.index, "date": ends + pd.Timedelta("20D"), "high": 12.0, "low": 6.0})
    told = trained.forecast(pd.concat([table, observation], ignore_index=True), horizon="4D", every="4D")
    after = told[told["variable"] == "high"]["std"].to_numpy()
    assert (after < 0.8 * by_lead[:, 4]).all()  # 4 days after it, instead of 20 days without


def test_a_filter_does_not_look_ahead(trained):
    table = stations(2, 25, seed=6)
    cut = table["date"].sort_values().iloc[20]
    changed = table.copy()
    changed.loc[changed["date"] > cut, ["high", "low"]] += 50.0
    at = [cut, cut - pd.Timedelta("3D")]
    pd.testing.assert_frame_equal(trained.predict(table, at=at), trained.predict(changed, at=at))


def test_it_has_learned_something(trained):
    fresh = stations(20, 25, seed=8)
    rule = Forecaster("mean", progress=False).fit(fresh, id="station", time="date")
    assert trained.score(fresh) > 0.3 > rule.score(fresh)
    last = Forecaster("last-value", progress=False).fit(stations(200, 25, seed=1), id="station", time="date")
    assert last.scores_["r2"] == last.scores_["r2_last_value"] == trained.scores_["r2_last_value"]
    assert 0.85 < trained.scores_["coverage90"] < 0.95 and trained.scores_["count"] > 500


def test_intervals_cover_new_series(trained):
    fresh = stations(80, 25, seed=11)
    known = fresh[fresh["date"] <= "2024-03-01"]
    later = fresh[(fresh["date"] > "2024-03-01") & (fresh["date"] <= "2024-03-15")]
    said = trained.predict(known, at=later[["station", "date"]], level=[50, 90])
    truth = later.melt(["station", "date"], value_name="truth").dropna()
    both = said.merge(truth, on=["station", "date", "variable"])
    assert len(both) > 400
    for level, low, high in ((50, 0.40, 0.60), (90, 0.84, 0.96)):
        assert low < both["truth"].between(both[f"lo-{level}"], both[f"hi-{level}"]).mean() < high


def test_the_same_seed_gives_the_same_model(table, monkeypatch):
    monkeypatch.setattr(fitting, "FIT", replace(fitting.FIT, segments_per_epoch=(32, 32)))
    options = {"epochs": 2, "options": {"num_basis": 2}, "progress": False, "minutes": None}
    fits = [Forecaster("f-cru", seed=seed, **options).fit(table, id="station", time="date") for seed in (3, 3, 4)]
    said = [model.forecast(horizon="10D") for model in fits]
    pd.testing.assert_frame_equal(said[0], said[1])
    assert not np.allclose(said[0]["mean"], said[2]["mean"])


def test_polars_in_polars_out(table, repeater):
    frame = pl.from_pandas(table)
    model = Forecaster("last-value", progress=False).fit(frame, id="station", time="date")
    for said in (model.forecast(horizon="5D"), model.impute(frame), model.sample(1, horizon="5D")):
        assert isinstance(said, pl.DataFrame)
    assert model.forecast(horizon="5D")["date"].dtype == frame["date"].dtype
    assert isinstance(model.forecast(table, horizon="5D"), pd.DataFrame)
    theirs = model.forecast(horizon="5D").to_pandas()
    pd.testing.assert_frame_equal(theirs, repeater.forecast(horizon="5D"), check_dtype=False)


def test_files_whole_numbers_as_ids_and_numbers_as_times(table, tmp_path):
    numbered = table.assign(station=table["station"].str[1:].astype(int), hour=table["date"].dt.day_of_year / 2.0)
    numbered = numbered.drop(columns="date")
    numbered.to_parquet(tmp_path / "observations.parquet")
    model = Forecaster("last-value", progress=False).fit(tmp_path / "observations.parquet", id="station", time="hour")
    said = model.forecast(horizon=3.0)
    assert said["station"].dtype == np.int64 and said["hour"].dtype == np.float64
    assert (said.groupby("station")["hour"].max() <= numbered.groupby("station")["hour"].max() + 3.0).all()


def test_a_long_table_is_as_good_as_a_wide_one(table, repeater):
    long = table.melt(["station", "date"], var_name="what").dropna()
    model = Forecaster("last-value", progress=False).fit(
        long, id="station", time="date", variable="what", values="value"
    )
    found = model.forecast(horizon="5D").rename(columns={"what": "variable"})
    pd.testing.assert_frame_equal(found, repeater.forecast(horizon="5D"))
    only = long[long["what"] == "low"]
    assert set(model.forecast(only, horizon="5D")["what"]) == {"high", "low"}


def test_one_series_is_split_by_time():
    days = np.arange(120.0)
    one = pd.DataFrame({"day": days, "tide": np.sin(days / 5)})
    model = Forecaster("last-value", progress=False).fit(one, time="day")
    said = model.forecast(horizon=3)
    assert said.columns.tolist() == ["day", "variable", "mean", "median", "std", "lo-90", "hi-90"]
    assert said["day"].tolist() == [120.0, 121.0, 122.0]
    assert said["mean"].iloc[0] == pytest.approx(np.sin(119 / 5), rel=1e-5)


def test_a_time_is_the_same_number_whenever_it_is_met():
    """Hours here: an observation's own time must be its time point, not one a rounding error later."""
    table = stations(20, 20, seed=4)
    table["date"] = pd.Timestamp("2024-01-01") + (table["date"] - pd.Timestamp("2024-01-01")) * 0.1
    model = Forecaster("last-value", progress=False).fit(table, id="station", time="date")
    assert model.clock_.unit == "h"
    np.testing.assert_array_equal(model.history_.times, model._series(table).times)
    assert np.isin(model.clock_.numbers(table["date"]), model.history_.times).all()


def test_a_pause_longer_than_any_that_was_practised_does_no_more_harm_than_the_longest(trained):
    table, longest = stations(4, 30, seed=41), trained.model_.spec.longest_gap
    second = table.groupby("station").cumcount() >= 10
    gap = table["date"].diff()[second & ~second.shift(fill_value=False)].max()
    said = []
    for pause in (pd.Timedelta(longest, "D") - gap, pd.Timedelta(longest, "D"), pd.Timedelta("30000D")):
        paused = table.assign(date=table["date"].mask(second, table["date"] + pause))
        stream = trained.stream()
        stream.update_many(paused)
        last = paused.groupby("station")["date"].max()
        now = stream.predict_many([last.max() + pd.Timedelta("2D")])["mean"].to_numpy()
        said.append((trained.forecast(paused, horizon="4D", every="2D")["mean"].to_numpy(), now))
    for found in zip(*said, strict=True):
        assert np.abs(found[2] - found[1]).max() < 1e-3 * np.ptp(found[1])
        assert np.abs(found[1] - found[0]).max() < 0.2 * np.ptp(found[1])


def test_who_asks_for_more_than_was_practised_is_told(trained):
    with pytest.warns(UserWarning, match=r"extend 9000D past the last observation; training covered \d+D"):
        trained.forecast(horizon="9000D", every="3000D")
    with pytest.warns(UserWarning, match=r"extend 216000h past the last observation; training covered \d+h"):
        trained.forecast(horizon="216000 hours", every="3000D")  # the unit of the horizon, not of the table


def test_a_constant_stays_one_whatever_its_size():
    table = stations(8, 25, seed=42).assign(tiny=1e-9, zero=0.0, number=5.1)
    model = Forecaster(epochs=1, progress=False).fit(table, id="station", time="date")
    for said in (model.forecast(horizon="4D"), model.sample(2, horizon="4D").rename(columns={"value": "mean"})):
        for name, constant in {"tiny": 1e-9, "zero": 0.0, "number": 5.1}.items():
            assert said[said["variable"] == name]["mean"].to_numpy() == pytest.approx(constant, rel=1e-9, abs=1e-300)
    with pytest.warns(
        UserWarning, match=r"'zero' was always 0 in training, .* has 2 other observations of it. Fit again"
    ):
        model.forecast(table.assign(zero=[7.0, 7.0, *table["zero"][2:]]), horizon="4D")
    band = model.forecast(horizon="4D")[lambda frame: frame["variable"] == "number"]
    assert (band["hi-90"] - band["lo-90"]).max() < 1e-9


def test_a_score_is_around_what_was_learnt_not_around_the_values_that_are_scored():
    """A model that knows each series' level is good, also where the few series of a table lie close together."""
    rng = np.random.default_rng(7)
    level = np.repeat(rng.normal(0, 3, 60), 15)
    table = pd.DataFrame({"s": np.repeat(np.arange(60), 15), "t": np.tile(np.arange(15.0), 60)})
    table["x"] = level + rng.normal(0, 1, len(table))
    model = Forecaster("series-mean", progress=False).fit(table, id="s", time="t")
    away = table[table["s"] == int(np.abs(level[::15]).argmax())]
    assert model.score(away) > 0.5
    assert model.scores_["series"] == 12


@pytest.mark.parametrize("name", ["last-value", "series-mean"])
def test_what_is_constant_in_each_series_but_not_in_all_is_no_constant(name):
    table = pd.DataFrame({"s": np.repeat(np.arange(24), 30), "t": np.tile(np.arange(30.0), 24)})
    table["x"] = table["s"] * 1.0
    said = Forecaster(name, progress=False).fit(table, id="s", time="t").forecast(horizon=1)
    assert said["mean"].to_numpy() == pytest.approx(np.arange(24.0), abs=1e-4)
