"""What goes wrong with tables: each one clear sentence, or the right answer."""

import datetime
import inspect

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cru import Forecaster
from cru.forecaster import fitting
from cru.forecaster.plot import draw
from tests.forecaster.conftest import FAR, stations


def fit(table, **columns):
    return Forecaster("last-value", progress=False).fit(table, **{"id": "station", "time": "date"} | columns)


def refused(call, *words):
    with pytest.raises(ValueError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


def test_a_new_series_is_filtered_from_the_prior(trained):
    new = stations(1, 25, seed=77).assign(station="never seen")
    said = trained.forecast(new, horizon="4D")
    assert set(said["station"]) == {"never seen"} and np.isfinite(said["mean"]).all()
    again = trained.forecast(pd.concat([new, stations(3, 25, seed=78)]), horizon="4D")
    pd.testing.assert_frame_equal(again[again["station"] == "never seen"].reset_index(drop=True), said)


def test_a_variable_that_was_not_in_training(table, repeater):
    refused(lambda: repeater.impute(table.assign(rain=1.0)), "also has 'rain'", "'high', 'low'")
    chosen = fit(table, values=["high", "low"])  # who names the columns may have others beside them
    assert len(chosen.impute(table.assign(rain=1.0))) == len(repeater.impute(table))
    refused(lambda: repeater.impute(table.drop(columns="low")), "'low'")
    long = table.melt(["station", "date"], var_name="what").dropna()
    model = fit(long, variable="what", values="value")
    refused(lambda: model.impute(long.replace("low", "rain")), "also has 'rain'")


def test_a_constant_variable(table):
    said = fit(table.assign(fixed=7.0)).forecast(horizon="5D")
    fixed = said[said["variable"] == "fixed"]
    np.testing.assert_allclose(fixed[["mean", "lo-90", "hi-90"]], 7.0, atol=0.01)


def test_series_with_a_single_observation(table):
    single = pd.DataFrame({"station": ["one"], "date": [pd.Timestamp("2024-01-05")], "high": [3.0], "low": [1.0]})
    model = fit(pd.concat([table, single]))
    said = model.forecast(horizon="2D")
    assert said[said["station"] == "one"]["mean"].tolist() == pytest.approx([3.0, 1.0, 3.0, 1.0], rel=1e-5)
    assert len(model.forecast(single, horizon="2D")) == 4
    refused(lambda: fit(single), "at least two series, or one with 20 observations", "got one with 1")


def test_times_before_the_training_range(trained):
    early = stations(2, 25, seed=3)
    early["date"] -= pd.Timedelta("3650D")
    said = trained.predict(early, at=["2010-01-01", "2014-02-01"])
    assert np.isfinite(said[["mean", "std"]]).all().all() and said["date"].min() == pd.Timestamp("2010-01-01")


@pytest.mark.parametrize("horizon", ["0D", "-3D", "0h"])
def test_a_horizon_of_nothing(repeater, horizon):
    refused(lambda: repeater.forecast(horizon=horizon), "`horizon` must be longer than zero", horizon)


@pytest.mark.parametrize("horizon", [30, 2.5, "30", "30 parsecs", "D", None, "soon"])
def test_a_horizon_in_the_wrong_unit(repeater, horizon):
    refused(
        lambda: repeater.forecast(horizon=horizon), "`horizon` must be a number with its unit", "'30D'", repr(horizon)
    )


def test_a_horizon_for_numbers(table):
    numbered = table.assign(date=table["date"].dt.day_of_year)
    model = fit(numbered)
    refused(lambda: model.forecast(horizon="30D"), "`horizon` must be a number", "'30D'")
    refused(lambda: model.forecast(horizon=0), "`horizon` must be longer than zero")
    refused(lambda: model.forecast(horizon=1e9), "`horizon` must be 1 to 100000 steps")
    refused(lambda: model.forecast(horizon=5, every=10), "`horizon` must be 1 to 100000 steps")
    refused(lambda: model.predict(numbered, at=["2024-01-01"]), "`at` must be numbers")


def test_columns_without_an_observation(table):
    refused(lambda: fit(table.assign(rain=np.nan)), "'rain' must hold at least one observation", "Leave it out")
    model = fit(table)
    said = model.forecast(table.assign(low=np.nan), horizon="2D")  # missing here, known from training
    assert np.isfinite(said["mean"]).all()


def test_a_thousand_variables(short_fit):
    rng, count = np.random.default_rng(0), 1_000
    values = pl.DataFrame(rng.normal(size=(40, count)), schema=[f"x{k}" for k in range(count)])
    table = values.with_columns(station=pl.Series(np.arange(40) // 4), date=pl.Series(np.arange(40) % 4))
    options = {"num_basis": 2, "hidden_size": 4}
    model = Forecaster("f-cru", options=options, epochs=1, progress=False).fit(table, id="station", time="date")
    assert fitting.default_options("cru", 10_000, {})["hidden_size"] == 32
    said = model.forecast(table.head(4), horizon=1)
    assert len(said) == count and said["std"].min() > 0


def test_two_rows_at_one_time(table):
    twice = pd.concat([table, table.head(1).assign(high=99.0)])
    refused(lambda: fit(twice), "repeated times, the first in series s00", "`duplicates='mean'`")
    refused(
        lambda: fit(table).impute(twice),
        "repeated times, the first in series s00",
        "Average them first, or fit again so",
    )
    model = fit(twice, duplicates="mean")
    first = model.predict(twice, at={"s00": [table["date"].iloc[0]]})["mean"].iloc[0]
    assert first == pytest.approx((99.0 + table["high"].iloc[0]) / 2, rel=1e-5)


def test_time_zones(table):
    berlin = table.assign(date=table["date"].dt.tz_localize("Europe/Berlin"))
    model = fit(berlin)
    said = model.forecast(horizon="2D")
    assert str(said["date"].dt.tz) == "Europe/Berlin"
    assert said["date"].min() > berlin["date"].min()
    tokyo = berlin.assign(date=berlin["date"].dt.tz_convert("Asia/Tokyo"))  # the same moments
    moved = model.forecast(tokyo, horizon="2D")
    assert (moved["date"] == said["date"]).all() and np.allclose(moved["mean"], said["mean"])
    refused(lambda: model.forecast(table, horizon="2D"), "must have a time zone, as in the training table, got none")
    refused(lambda: fit(table).forecast(berlin, horizon="2D"), "must have no time zone, as in the training table")
    refused(lambda: model.predict(berlin, at=["2024-03-01"]), "`at` must have a time zone")
    for at in (["2024-03-01T00:00Z", "2024-03-01"], ["2024-03-01", "2024-03-01T00:00Z"]):
        refused(lambda at=at: model.predict(berlin, at=at), "`at` must have a time zone")
        refused(lambda at=at: fit(table).predict(table, at=at), "`at` must have no time zone")
    assert len(model.predict(berlin, at=["2024-03-01T00:00+01:00"])) == 48


def test_mixed_time_zones(table, tmp_path):
    """Several zones are one line of time; moments with a zone beside moments without one cannot be."""

    def zoned(*zones):
        stamps = [stamp.tz_localize(zones[k % 2]) for k, stamp in enumerate(table["date"])]
        return table.assign(date=pd.Series(stamps, dtype=object))

    both = zoned("UTC", "Asia/Tokyo")
    said = fit(both).forecast(horizon="1D")
    assert str(said["date"].dt.tz) == "UTC"
    ends = pd.to_datetime(both["date"], utc=True).groupby(both["station"]).max() + pd.Timedelta("1D")
    assert (said.groupby("station")["date"].max() == ends).all()
    refused(lambda: fit(zoned("UTC", None)), "'date' must have a time zone in all rows or in none")
    lines = [f"{k % 3},2024-01-{1 + k // 3:02d}T00:00{'+01:00' if k % 2 else ''},{k}" for k in range(60)]
    (tmp_path / "mixed.csv").write_text("station,date,x\n" + "\n".join(lines))
    refused(lambda: fit(tmp_path / "mixed.csv"), "'date' must hold dates of one form")


@FAR
def test_lengths_of_time_of_every_kind_are_understood(repeater):
    day = datetime.timedelta(days=14)
    same = ["2 weeks", "2W", "14 days", "14D", "336 hours", day, pd.Timedelta(day), np.timedelta64(14, "D")]
    said = [repeater.forecast(horizon=length, every="1 day") for length in same]
    assert all(frame.equals(said[0]) for frame in said)
    refused(lambda: repeater.forecast(horizon=np.timedelta64(1, "M")), "`horizon` must be a number with its unit")
    long = repeater.forecast(horizon=datetime.timedelta(days=120_000), every="30000D")
    assert long.groupby("station").size().max() == 4 * long["variable"].nunique()


def test_times_of_every_kind_are_understood(repeater, table):
    moment = pd.Timestamp("2024-03-01")
    same = [moment, "2024-03-01", datetime.datetime(2024, 3, 1), datetime.date(2024, 3, 1), np.datetime64("2024-03-01")]
    said = [repeater.predict(table, at=[time]) for time in same]
    assert all(frame.equals(said[0]) for frame in said)
    text = table.assign(date=table["date"].dt.strftime("%Y-%m-%d"))
    assert repeater.predict(text, at=["2024-03-01"]).equals(said[0])
    for wrong in (["soon"], [pd.NaT], [None], [np.datetime64("NaT")], [["2024-03-01"]]):
        refused(lambda wrong=wrong: repeater.predict(table, at=wrong), "`at` must be dates like")
    refused(lambda: repeater.predict(table, at=[5]), "`at` must be dates", "got the number 5")
    refused(lambda: repeater.predict(table, at="2024-03-01"), "`at` must be a list of times")
    refused(lambda: repeater.predict(table, at=[]), "`at` must hold at least one time")
    refused(
        lambda: repeater.predict(table, at=table[["date"]]),
        "`at` must have the columns of the training table, got ['date'] without 'station'",
    )


@FAR
def test_centuries_away(repeater, table):
    far = [datetime.datetime(1, 1, 1), datetime.datetime(2024, 3, 1), datetime.datetime(9999, 1, 1)]
    first = datetime.datetime.fromisoformat(repeater.clock_.origin)
    assert [repeater.clock_.number(time) for time in far] == [(time - first).days for time in far]
    asked = pl.DataFrame({"station": "s00", "date": far})
    said = repeater.predict(pl.from_pandas(table), at=asked)
    assert said["date"].unique().sort().to_list() == far


@pytest.mark.parametrize("level", [0, 100, "90", [50, 120], True])
def test_levels(repeater, level):
    refused(lambda: repeater.forecast(horizon="2D", level=level), "`level` must be per cent from 1 to 99.8")


def test_other_arguments(table, repeater):
    refused(lambda: repeater.sample(0, horizon="2D"), "`n`, the first argument, must be an integer of at least 1")
    sample = inspect.unwrap(Forecaster.sample)  # as it is outside the tests, without checks of types
    refused(lambda: sample(repeater, table, horizon="2D"), "`n`, the first argument,", "got DataFrame.")
    refused(lambda: repeater.sample(2), "`at` must be given if and only if `horizon` is not, got neither")
    refused(lambda: Forecaster("crue", progress=False).fit(table, id="station", time="date"), "did you mean 'cru'?")
    refused(lambda: fit(table, time="when"), "'when'")
    refused(lambda: Forecaster("cru").set_params(epochs=0).fit(table, id="station", time="date"), "`epochs` must be")
    refused(
        lambda: Forecaster("cru").set_params(minutes="x").fit(table, id="station", time="date"), "`minutes` must be"
    )
    refused(lambda: fit(table.head(0)), "at least one row")
    refused(lambda: fit(table.assign(date=pd.NaT)), "at least one row with a time")
    refused(lambda: fit(table.assign(name="x")), "'name'")


@pytest.mark.parametrize("name", ["mean", "variable", "sample", "value", "lo-90", "hi-99.5"])
def test_columns_called_like_those_of_the_answers(table, name):
    sentence = f"must not have the name of a column of predictions, got {name!r}. Rename it."
    refused(lambda: fit(table.rename(columns={"station": name}), id=name), f"`id` {sentence}")
    refused(lambda: fit(table.rename(columns={"date": name}), time=name), f"`time` {sentence}")


@FAR
def test_ids_that_are_whole_numbers_written_as_floats(table):
    number = table["station"].str[1:].astype(int)
    whole, floats = (table.assign(station=number.astype(kind)) for kind in (int, float))
    for model in (fit(whole), fit(floats)):
        for asked in (1, 1.0, np.float32(1), "1"):
            said = model.predict(floats, at={asked: ["2024-09-01"]})
            assert said["station"].tolist() == [1, 1] and said["station"].dtype == int
            assert said["mean"].iloc[0] == pytest.approx(table["high"][number == 1].iloc[-1], rel=1e-5)
        at = pd.DataFrame({"station": [1.0], "date": [pd.Timestamp("2024-09-01")]})
        assert model.predict(whole, at=at).equals(said)
    halves = fit(table.assign(station=number / 2))
    said = halves.predict(table.assign(station=number / 2), at={1: ["2024-09-01"], 1.5: ["2024-09-01"]})
    assert sorted(set(said["station"])) == ["1", "1.5"] and len(set(halves.history_.ids)) == 24


def test_names_that_are_one_number_stay_apart(table):
    model = fit(table.assign(station=table["station"].str[1:].astype(int)))
    both = pd.concat([table[table["station"] == f"s0{k}"].assign(station=name) for k, name in ((1, "7"), (2, "007"))])
    assert sorted(set(model.forecast(both, horizon="2D")["station"])) == ["007", "7"]


@pytest.mark.parametrize("station", [f"s{k:02d}" for k in range(6)])  # of those that train, or that validate
def test_absurd_values(table, repeater, station):
    absurd = table.copy()
    absurd.loc[table["station"].eq(station).idxmax(), "high"] = -1e300
    words = "'high'", repr(station), "-1e+300"
    refused(lambda: fit(absurd), *words)
    refused(lambda: repeater.forecast(absurd, horizon="2D"), *words)
    refused(lambda: repeater.predict(absurd, at=["2024-03-01"]), *words)


def test_forecasts_start_at_the_last_observation(table, repeater):
    rows = [
        {"station": "s00", "date": pd.Timestamp("2025-01-01")},
        {"station": "zz", "date": pd.Timestamp("2024-06-01")},
    ]
    said = repeater.forecast(pd.concat([table, pd.DataFrame(rows)]), horizon="2D", every="1D")
    known = said[said["station"] != "zz"].reset_index(drop=True)
    pd.testing.assert_frame_equal(known, repeater.forecast(table, horizon="2D", every="1D"))
    assert said[said["station"] == "zz"]["date"].min() == pd.Timestamp("2024-06-02")


def test_parameters_of_numpy(table):
    options = {"hidden_size": np.int64(4), "num_basis": np.int64(2)}
    numbers = {"learning_rate": np.float32(0.01), "seed": np.int64(3), "epochs": np.int64(1), "batch_size": np.int64(8)}
    model = Forecaster("cru", base=None, progress=False).set_params(options=options, **numbers)
    model.fit(table, id="station", time="date")
    assert type(model.options_["hidden_size"]) is int and type(model.seed) is np.int64  # kept as it came
    assert np.isfinite(model.score(table))
    for seed in (-1, 1.5, True, "x", None):
        refused(
            lambda seed=seed: Forecaster("last-value").set_params(seed=seed).fit(table, id="station", time="date"),
            "`seed` must be an integer of at least 0",
            repr(seed),
        )
    refused(lambda: Forecaster("cru").set_params(options=[1]).fit(table, time="date"), "`options` must be a mapping")


def test_none_is_the_training_table(table, repeater):
    assert repeater.impute(None).equals(repeater.impute(table))
    at = ["2024-03-01"]
    assert repeater.predict(None, at=at).equals(repeater.predict(table, at=at))


def test_a_slip_of_the_pen_is_pointed_out(table):
    slipped = table.copy()
    slipped.loc[slipped.index[slipped["station"] == "s05"][3], "high"] = 3700.0
    with pytest.warns(UserWarning, match=r"Possible outlier: 3700 of 'high' in series 's05' is \d+% of the variance"):
        fit(slipped)


def test_dates_that_are_none_are_named(table, tmp_path):
    table.assign(date=table["date"].astype(str)).replace("2024-01-05", "2024-02-30").to_csv(tmp_path / "day.csv")
    refused(lambda: fit(tmp_path / "day.csv"), "'date' must hold dates of one form", "'2024-02-30' is none")


KINDS_OF_IDS = {
    "dates": [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02")],
    "booleans": [False, True],
    "floats": [1.5, 2.0],
    "whole floats": [1.0, 2.0],
    "texts of numbers": ["9", "10"],
}


@FAR
@pytest.mark.parametrize("kind", KINDS_OF_IDS)
def test_ids_of_any_kind_are_the_same_series_however_they_are_asked_for(kind):
    one, other = KINDS_OF_IDS[kind]
    table = pd.DataFrame({"s": [one, other] * 20, "t": np.repeat(np.arange(20.0), 2), "x": [5.0, 8.0] * 20})
    model = Forecaster("last-value", progress=False).fit(table, id="s", time="t")
    means = [model.predict(table, at=at)["mean"].tolist() for at in ([30.0], {one: [30.0], other: [30.0]})]
    framed = model.predict(table, at=pd.DataFrame({"s": [other, one], "t": [30.0, 30.0]}))
    assert means == [[5.0, 8.0]] * 2 and sorted(framed["mean"]) == [5.0, 8.0] and len(framed) == 2
    assert draw(model, table, series=framed["s"].astype(str).iloc[0]).axes


def test_questions_that_name_no_series(table, repeater):
    at = pd.DataFrame({"station": ["s00", None], "date": pd.to_datetime(["2024-06-01", "2024-06-02"])})
    refused(lambda: repeater.predict(table, at=at), "'station' must be filled in every row, got 1 of 2")
    assert len(repeater.predict(table, at=at[:0])) == 0
    single = table[table["station"] == "s00"].drop(columns="station")
    alone = fit(single, id=None)
    refused(lambda: alone.predict(single, at={"s07": ["2024-06-01"]}), "has no column of ids", "s07")
    assert len(alone.predict(single, at={None: ["2024-06-01"]})) == 2


def test_a_picture_of_a_table_with_holes_or_nothing(table, repeater):
    refused(lambda: draw(repeater, table[:0]), "at least one row")
    holes = table.assign(station=table["station"].where(table.index > 3))
    refused(lambda: draw(repeater, holes), "'station' must be filled in every row, got 4 of")


def test_ids_that_are_lists(table):
    pairs = table.assign(station=[(1, int(name[1:])) for name in table["station"]])
    refused(lambda: fit(pairs), "'station' must hold texts, numbers or dates, got tuple")


def test_dates_and_moments_in_one_column():
    day, moment = datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 2, 5)
    for times in ([day, moment], [moment, day]):
        table = pd.DataFrame({"date": pd.Series(times, dtype=object), "x": [1.0, 2.0]})
        refused(lambda table=table: fit(table, id=None), "a time of day in all rows or in none")
    aware = moment.replace(tzinfo=datetime.UTC)
    gone = pd.DataFrame({"date": pd.Series([aware, None], dtype=object), "x": [1.0, 2.0]})
    refused(lambda: fit(gone, id=None), "1 of 2 missing")


def test_nanoseconds_are_said_to_be_cut(table):
    with pytest.warns(UserWarning, match="'date' are rounded down to microseconds"):
        fit(table.assign(date=table["date"].astype("datetime64[ns]") + pd.Timedelta(7, unit="ns")))


def test_a_column_of_nothing_is_missing(table, repeater):
    none = table.assign(low=None)
    assert repeater.predict(none, at=["2024-06-01"]).equals(
        repeater.predict(table.assign(low=np.nan), at=["2024-06-01"])
    )
