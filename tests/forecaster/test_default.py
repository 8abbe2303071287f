"""The default: a network on top of a structural model."""

import warnings

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
from cru.forecaster.clock import Clock, find_calendar
from cru.forecaster.corrections import FOLD, with_folds
from cru.forecaster.kinds import Kinds
from cru.forecaster.structural_options import choose_log_scales
from cru.models.corrected import CorrectedModel
from cru.models.structural import StructuralConfig
from tests.forecaster.conftest import stations


def make(frame: pd.DataFrame, **columns: object) -> Forecaster:
    return Forecaster(epochs=2, progress=False).fit(frame, **columns)


def test_it_fills_in_from_both_sides_and_forecasts_from_the_past(default):
    assert isinstance(default.model_, CorrectedModel)
    table = stations(10, 25, seed=5)
    one = table[table["station"] == "s03"].reset_index(drop=True)
    hidden = one["high"].iloc[12]
    one.loc[12, ["high", "low"]] = np.nan
    said = default.predict(one, at=[one["date"].iloc[12]]).set_index("variable")["mean"]["high"]
    past = default.predict(one.iloc[:12], at=[one["date"].iloc[12]]).set_index("variable")["mean"]["high"]
    assert abs(said - past) > 1e-6, "later observations must count"
    assert abs(said - hidden) < 6


def test_a_stream_gives_the_numbers_of_predict(default):
    table = stations(6, 20, seed=6)
    stream = default.stream()
    stream.update_many(table)
    later = table["date"].max() + pd.Timedelta("3D")
    live = stream.predict_many([later]).set_index(["station", "variable"]).sort_index()
    whole = default.predict(table, at=[later]).set_index(["station", "variable"]).sort_index()
    numbers = ["mean", "median", "std", "lo-90", "hi-90"]
    np.testing.assert_allclose(live[numbers], whole[numbers], rtol=1e-4, atol=1e-5)


def test_a_saved_model_says_the_same(default, tmp_path):
    default.save(tmp_path / "model")
    again = Forecaster.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.forecast(horizon="6D"), default.forecast(horizon="6D"))
    assert again.scores_ == default.scores_


def test_scores_stand_beside_every_rule(default):
    rows = default.scores_["table"]
    assert {row["variable"] for row in rows} == {"high", "low"}
    rules = {"structural", "last-value", "linear", "series-mean", "seasonal-naive", "climatology", "blend"}
    assert all(rules | {"model", "lead", "count"} <= row.keys() for row in rows)


def test_the_same_seed_gives_the_same_numbers():
    table = stations(30, 20, seed=9)
    first, second, other = (
        Forecaster(epochs=2, seed=seed, minutes=None, progress=False)
        .fit(table, id="station", time="date")
        .forecast(horizon="4D")
        for seed in (1, 1, 2)
    )
    pd.testing.assert_frame_equal(first, second)
    assert not np.allclose(first["mean"], other["mean"])


def test_nothing_saturates():
    """Thirty days of one snow depth, far above most of training: the next day has that depth."""
    rng = np.random.default_rng(0)
    days = np.arange(120)
    parts = []
    for number in range(40):
        depth = np.maximum(0, np.cumsum(rng.normal(0, 25, len(days))) + rng.normal(0, 60))
        depth = np.where(rng.random(len(days)) < 0.6, np.round(depth), depth)
        parts.append(pd.DataFrame({"s": number, "day": days, "snow": depth}))
    model = Forecaster(progress=False).fit(pd.concat(parts), id="s", time="day")
    for depth in (50.0, 100.0, 400.0, 1600.0):
        constant = pd.DataFrame({"s": 0, "day": np.arange(30), "snow": depth})
        said = model.predict(constant, at=[30])
        assert said["mean"].iloc[0] == pytest.approx(depth, rel=0.03)


def test_skewed_values_that_are_never_negative_stay_so():
    rng = np.random.default_rng(1)
    day = np.tile(np.arange(40.0), 30)
    rain = np.exp(rng.normal(0, 0.3, (30, 40)).cumsum(1) + rng.normal(0, 1, (30, 1))).ravel()
    model = make(pd.DataFrame({"s": np.arange(30).repeat(40), "day": day, "rain": rain}), id="s", time="day")
    said = model.forecast(horizon=5, level=[50, 90])
    assert model.scaler_.is_log[0], "else the test shows nothing"
    assert (said["lo-90"] >= 0).all() and (said["mean"] >= 0).all() and np.isfinite(said["hi-90"]).all()


def table_of(values: dict[str, np.ndarray], ids: np.ndarray, times: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"s": ids, "t": times} | values)


def odd_tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(3)
    ids, times = np.arange(20).repeat(15), np.tile(np.arange(15.0), 20)
    walk = rng.normal(size=300).cumsum()
    rare = np.full(300, np.nan)
    rare[[3, 50, 120]] = 1.0, 2.0, 3.0
    ten = {f"x{k}": rng.normal(size=300) for k in range(9)} | {"rare": rare}
    seldom = np.zeros(300)
    seldom[::37] = 5.0
    return {
        "a variable with three observations": table_of(ten, ids, times),
        "one series of 25": table_of({"x": walk[:25]}, np.zeros(25, int), np.arange(25.0)),
        "series of one observation": table_of({"x": walk[:40]}, np.arange(40), np.arange(40.0)),
        "a constant": table_of({"x": np.full(300, 3.5)}, ids, times),
        "nanoseconds": table_of({"x": walk}, ids, times * 1e-9),
        "years": table_of({"x": walk}, ids, times * 3e7),
        "zero on most days": table_of({"x": seldom}, ids, times),
        "duplicated variables": table_of({"x": walk, "y": walk}, ids, times),
        "very different sizes": table_of({"x": 1e12 * walk, "y": 1e-12 * walk}, ids, times),
    }


@pytest.mark.parametrize("name", odd_tables())
def test_odd_tables_give_sensible_predictions_and_no_warning(name, short_fit):
    table = odd_tables()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make(table, id="s", time="t")
        last = table["t"].max()
        said = model.predict(table, at=[last * 1.02 if last else 0.1])
    for variable, rows in said.groupby("variable"):
        values = table[variable].dropna()
        room = 4 * max(float(np.ptp(values)), 1e-9 * float(np.abs(values).max()))
        assert rows["mean"].between(values.min() - room, values.max() + room).all(), (name, variable)
        assert (rows["lo-90"] <= rows["hi-90"]).all()


def test_a_calendar_is_what_the_table_can_identify():
    hours = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=24 * 40, freq="h"), "x": 1.0})
    model = Forecaster("last-value", progress=False).fit(hours, time="t")
    found = find_calendar(model.history_, model.clock_, 1.0)
    assert found.phases == (24.0, 168.0)
    assert set(found.oscillators) == {24.0, 12.0, 8.0, 168.0, 84.0} and set(found.oscillators) < set(found.season)
    assert find_calendar(model.history_, Clock(), 1.0).season == ()


def test_folds_are_series_or_blocks():
    from tests.forecaster.test_queries import series

    many = with_folds(series([10] * 50), 5, seed=0)
    fold = many.per_time[FOLD]
    assert all(len(set(fold[many.series_index == i])) == 1 for i in range(50))
    assert np.bincount(fold).tolist() == [100] * 5
    few = with_folds(series([1000]), 5, seed=0).per_time[FOLD]
    assert (np.bincount(few) == 200).all() and (np.diff(few) != 0).sum() < 50


def test_a_logarithm_is_taken_where_it_helps():
    from cru.data import make_series

    rng = np.random.default_rng(2)
    walks = rng.normal(0, 0.3, (60, 40)).cumsum(1)
    skewed = np.exp(walks + rng.normal(0, 1, (60, 1))).ravel()
    values = np.stack([skewed, walks.ravel(), np.where(rng.random(2400) < 0.6, 0.0, skewed)], 1)
    times, offsets = np.tile(np.arange(40.0), 60), np.arange(61) * 40
    table = make_series(times, values, offsets, ids=range(60), names=["skewed", "plain", "often zero"])
    scales = choose_log_scales(table, Kinds.infer(table, {}, {}), StructuralConfig(), 0.3, 0)
    assert scales[0] > 0 and scales[1:] == (0, 0)


def test_progress_is_quiet_without_a_terminal(capsys, short_fit):
    Forecaster(epochs=2).fit(stations(30, 20, seed=9), id="station", time="date")
    assert capsys.readouterr() == ("", "")


def test_a_network_with_a_memory_that_learns_nothing_leaves_the_structural_model():
    """The structural model counts as epoch 0, so a training that only makes it worse is not kept."""
    table = stations(24, 30, seed=3)
    names = {"id": "station", "time": "date"}
    ruined = Forecaster("gru", epochs=1, learning_rate=50.0, progress=False).fit(table, **names)
    assert ruined.name_ == "corrected" and float(ruined.model_.gain.detach().abs().max()) == 0.0
