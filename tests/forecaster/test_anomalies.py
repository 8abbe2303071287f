"""Anomalies: p-values are uniform without any, small with one, and the same in a stream."""

import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats

import cru
from cru import Forecaster
from cru.data import from_table
from cru.forecaster.one_step_errors import (
    OneStepErrorDistribution,
    Situation,
    run_lengths,
    situation_of,
)
from tests.forecaster.conftest import stations
from tests.forecaster.test_coverage import table as as_table
from tests.forecaster.test_stream import fitted, observations

NUMBERS = ["p_value", "repeats", "anomaly"]


def walks(count: int, steps: int, *, seed: int) -> pd.DataFrame:
    """Two processes that return to their mean, observed with noise at irregular times, a fifth missing."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(count):
        gaps = rng.exponential(1.0, steps)
        x, y, a, b = [], [], rng.normal(), rng.normal()
        for gap in gaps:
            keep = np.exp(-gap / 5)
            a = keep * a + np.sqrt(1 - keep**2) * rng.normal()
            b = keep * b + np.sqrt(1 - keep**2) * rng.standard_t(4)
            x.append(10 + 3 * a + 0.5 * rng.normal())
            y.append(b + 0.2 * rng.normal())
        part = pd.DataFrame({"id": f"w{number}", "time": np.cumsum(gaps), "x": x, "y": y})
        for column in ("x", "y"):
            part.loc[rng.random(steps) < 0.2, column] = np.nan
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def model() -> Forecaster:
    return Forecaster("structural", progress=False).fit(walks(100, 60, seed=0), id="id", time="time")


def test_p_values_are_uniform_without_anomalies(model) -> None:
    found = model.anomalies(walks(300, 60, seed=1))
    assert found.columns.tolist() == ["id", "time", "variable", "value", "mean", *NUMBERS]
    one = found.groupby("id").sample(1, random_state=0)["p_value"]  # series are independent, their rows are not
    assert len(one) == 300 and stats.kstest(one, "uniform").pvalue > 0.01
    for _, part in found.groupby("variable"):
        assert stats.kstest(part["p_value"], "uniform").statistic < 0.03
        assert (part["p_value"] < 0.01).mean() == pytest.approx(0.01, abs=0.003)
    assert found["anomaly"].mean() < 0.003


def test_p_values_are_uniform_in_rare_situations_too(model) -> None:
    """There are few errors to learn from: about a hundred of first rows."""
    table = walks(600, 4, seed=2)
    step = table.groupby("id").cumcount()
    first = model.anomalies(table[step == 0])["p_value"]
    assert len(first) > 600 and stats.kstest(first, "uniform").statistic < 0.1
    since = table.groupby("id")["time"].diff()
    late = table[since > model.errors_.long_gap][["id", "time"]]
    later = model.anomalies(table).merge(late)["p_value"]
    assert len(later) > 600 and stats.kstest(later, "uniform").statistic < 0.08


@pytest.mark.xfail(reason="the p-values of a first observation are not uniform after several rows without it: KS 0.32")
def test_p_values_are_uniform_for_a_variable_that_starts_late(model) -> None:
    table = walks(600, 4, seed=2)
    table.loc[table.groupby("id").cumcount() < 3, "x"] = np.nan
    unread = model.anomalies(table)
    unread = unread[unread["variable"] == "x"]["p_value"]
    assert len(unread) > 400 and stats.kstest(unread, "uniform").statistic < 0.1


def test_a_spike_is_found_where_it_is(model) -> None:
    table = walks(40, 60, seed=3)
    rows = table.groupby("id").nth(30).index
    table.loc[rows, "x"] += 12.0
    found = model.anomalies(table).merge(table.loc[rows, ["id", "time"]])
    assert found[found["variable"] == "x"]["anomaly"].mean() > 0.9
    assert found[found["variable"] == "y"]["anomaly"].mean() < 0.1


def test_only_earlier_rows_count(model) -> None:
    table = walks(1, 60, seed=4).dropna(ignore_index=True)
    changed = table.copy()
    changed.loc[20, "x"] = 100.0
    before, after = (model.anomalies(frame) for frame in (table, changed))
    same = before["time"] < table["time"][20]
    pd.testing.assert_frame_equal(before[same], after[same])
    now = before["time"] == table["time"][20]
    assert before[now]["mean"].tolist() == after[now]["mean"].tolist()  # not the own value, either
    assert before[now]["p_value"].tolist()[1] == after[now]["p_value"].tolist()[1]
    assert not np.allclose(before[~same & ~now]["mean"], after[~same & ~now]["mean"])


def test_a_stuck_sensor_is_found_by_its_repeats(model) -> None:
    table = walks(20, 60, seed=5).dropna(ignore_index=True)
    step = table.groupby("id").cumcount()
    stuck = (step >= 20) & (step < 26)
    held = table[step == 20].set_index("id")["x"]
    table.loc[stuck, "x"] = table.loc[stuck, "id"].map(held)
    found = model.anomalies(table).merge(table.loc[stuck, ["id", "time"]].assign(number=step[stuck] - 19))
    x = found[found["variable"] == "x"]
    assert (x["repeats"] == x["number"]).all()
    assert x[x["number"] >= 2]["anomaly"].all()  # of 12,000 observations, none repeated
    assert (found[found["variable"] == "y"]["repeats"] == 1).all()


@pytest.mark.parametrize("name", ["cru", "rkn-dt", "structural", "default"])
def test_a_stream_says_the_same(name: str, default) -> None:
    if name == "default":
        forecaster, table, later = copy.deepcopy(default), stations(4, 25, seed=7), pd.Timestamp("2025-01-01")
    else:
        forecaster = fitted(name)
        table, later = observations(4, seed=1), 30.0
    keys, (one, two) = [forecaster.columns_.id, forecaster.columns_.time], forecaster.names_
    table.loc[table.index % 4 < 2, one] = 21.0  # repeats
    forecaster.model_.double()
    expected = forecaster.anomalies(table).set_index([*keys, "variable"]).sort_index()
    assert expected["repeats"].max() > 1
    single, both, many = forecaster.stream(), forecaster.stream(), forecaster.stream()
    found, again, last = {}, {}, {}
    for row in table.sort_values(keys[1]).to_dict("records"):
        key, values = tuple(row[name] for name in keys), {one: row[one], two: row[two]}
        said = single.anomalies(*key, values)
        assert said == single.anomalies(*key, values)  # it changes nothing
        single.update(*key, values)
        other = both.anomalies(*key, values, update=True)
        for kept, part in ((found, said), (again, other)):
            kept |= {(*key, variable): numbers for variable, numbers in part.items()}
        last |= {key[0]: row[one]} if row[one] == row[one] else {}
    for kept in (found, again):
        got = pd.DataFrame(kept).T.sort_index()
        assert got.index.tolist() == expected.index.tolist()
        np.testing.assert_allclose(got["p_value"].astype(float), expected["p_value"], rtol=1e-6, atol=1e-9)
        assert got["repeats"].tolist() == expected["repeats"].tolist()
        assert got["anomaly"].tolist() == expected["anomaly"].tolist()
    half = table[keys[1]] < table[keys[1]].median()
    many.update_many(table[half])
    many.update_many(table[~half])
    for number, value in last.items():
        wanted = single.anomalies(number, later, {one: value})[one]
        assert wanted["repeats"] > 1
        for stream in (both, many):
            said = stream.anomalies(number, later, {one: value})[one]
            assert said["p_value"] == pytest.approx(wanted["p_value"], rel=1e-6)
            assert said["repeats"] == wanted["repeats"]


def test_a_stream_that_was_saved_knows_the_repeats(model, tmp_path) -> None:
    stream = model.stream()
    for time in (1.0, 2.0, 3.0):
        stream.update("a", time, {"x": 10.0})
    stream.save(tmp_path / "state")
    again = model.stream(state=tmp_path / "state")
    assert again.anomalies("a", 4.0, {"x": 10.0}) == stream.anomalies("a", 4.0, {"x": 10.0})
    assert again.anomalies("a", 4.0, {"x": 10.0})["x"]["repeats"] == 4


def test_a_stream_and_what_is_late_or_empty(model) -> None:
    stream, dropping = model.stream(), model.stream(late="drop")
    for each in (stream, dropping):
        assert each.anomalies("a", 5.0, {}) == {} and len(each) == 0
        each.anomalies("a", 5.0, {"x": 10.0}, update=True)
        assert len(each) == 1
    assert dropping.anomalies("a", 4.0, {"x": 9.0}) == {}
    with pytest.raises(ValueError, match="`time` must not lie before the last observation of 'a'"):
        stream.anomalies("a", 4.0, {"x": 9.0})
    with pytest.raises(ValueError, match="`level` must be a probability"):
        stream.anomalies("a", 6.0, {"x": 9.0}, level=1)


def test_polars_and_saved_folders(model, tmp_path) -> None:
    table = walks(3, 30, seed=6)
    model.save(tmp_path / "model")
    loaded = Forecaster.load(tmp_path / "model")
    expected = model.anomalies(table)
    pd.testing.assert_frame_equal(loaded.anomalies(table), expected)
    found = loaded.anomalies(pl.from_pandas(table), level=0.2)
    assert isinstance(found, pl.DataFrame) and found.columns == list(expected.columns)
    np.testing.assert_array_equal(found["p_value"].to_numpy(), expected["p_value"])
    assert found["anomaly"].sum() >= (expected["p_value"] < 0.2).sum() > 0
    pd.testing.assert_frame_equal(model.anomalies(), model.anomalies(walks(100, 60, seed=0)))


def test_what_is_refused(model, table) -> None:
    for level in (0, 1, -0.1, 5, True, "0.001", None):
        with pytest.raises(ValueError, match=r"`level` must be a probability between 0 and 1, such as 0\.001, got"):
            model.anomalies(level=level)
    with pytest.raises(ValueError, match="not fitted yet"):
        Forecaster().anomalies(table)
    later = Forecaster("linear", progress=False).fit(table, id="station", time="date")
    with pytest.raises(ValueError, match="must be predicted from earlier observations, and 'linear' uses later ones"):
        later.anomalies(table)


@pytest.mark.filterwarnings("ignore:'fixed' was always 7")
def test_a_constant_that_changes(table) -> None:
    model = Forecaster("last-value", progress=False).fit(table.assign(fixed=7.0), id="station", time="date")
    found = model.anomalies(table.assign(fixed=np.where(table.index == 5, 8.0, 7.0)), level=0.01)
    fixed = found[found["variable"] == "fixed"].reset_index(drop=True)
    assert fixed["anomaly"].sum() == 1 and fixed["p_value"][5] == 1 / (len(table) + 1)
    assert (fixed["p_value"].drop(5) == 1).all()


def test_nothing_observed_nothing_judged(model) -> None:
    nothing = walks(1, 5, seed=7).assign(x=np.nan, y=np.nan)
    assert len(model.anomalies(nothing)) == 0


def distribution(errors: np.ndarray) -> OneStepErrorDistribution:
    series = from_table(pd.DataFrame({"t": np.arange(float(len(errors))), "x": errors}), id=None, time="t")
    shape = (len(errors), 1)
    situation = np.full(shape, Situation.AFTER_SHORT_GAP)
    return OneStepErrorDistribution.fit(errors[:, None], np.ones(shape, bool), situation, series, 2.0)


@pytest.mark.parametrize("freedom", [3, 10, 1e6])
def test_the_tails_are_those_of_the_errors(freedom: float) -> None:
    """Student's t: heavy, light and almost normal. Of 50,000 errors, 25 are beyond each limit of p = 0.001."""
    law = stats.t(freedom)
    found = distribution(law.rvs(50_000, random_state=0))
    fresh = law.rvs(20_000, random_state=1)
    zeros = np.zeros(len(fresh), np.int64)
    p = found.p_values(fresh, zeros + Situation.AFTER_SHORT_GAP, zeros)
    assert stats.kstest(p, "uniform").pvalue > 0.01
    for probability, factor in ((0.05, 1.1), (0.01, 1.15), (0.001, 1.6), (1e-4, 2.5)):
        z = law.isf(probability / 2)
        two = found.p_values(np.array([-z, z]), zeros[:2] + Situation.AFTER_SHORT_GAP, zeros[:2])
        assert (two < factor * probability).all() and (two > probability / factor).all()
    far = found.p_values(np.array([-1e9, 1e9]), zeros[:2] + Situation.AFTER_SHORT_GAP, zeros[:2])
    assert (far > 0).all() and (far < 1e-6).all()


def test_few_errors_have_a_tail_as_well() -> None:
    found = distribution(np.random.default_rng(0).normal(size=200))
    p = found.p_values(np.array([4.0, -4.0, 8.0]), np.full(3, Situation.AFTER_SHORT_GAP), np.zeros(3, np.int64))
    assert (p[:2] < 0.01).all() and (p > 0).all() and p[2] < p[0]
    none = distribution(np.zeros(3))
    p = none.p_values(np.array([0.0, 1.96, 3.29]), np.full(3, Situation.AFTER_SHORT_GAP), np.zeros(3, np.int64))
    np.testing.assert_allclose(p[:2], [1.0, 0.05], atol=0.005)  # a normal distribution
    assert 0.0005 < p[2] < 0.004


def test_equal_errors_count_as_the_middle_of_their_ranks() -> None:
    rng = np.random.default_rng(0)
    errors = rng.choice([-1.0, 0.0, 2.0], 10_000, p=[0.1, 0.6, 0.3])
    found = distribution(errors)
    p = found.p_values(np.array([-1.0, 0.0, 2.0, 5.0]), np.full(4, Situation.AFTER_SHORT_GAP), np.zeros(4, np.int64))
    np.testing.assert_allclose(p[:3], [0.1, 0.8, 0.3], atol=0.03)  # twice the smaller of both sides
    assert p[3] < 0.04


def test_situations() -> None:
    since, read = np.array([np.inf, 1.0, 1.0, 9.0]), np.array([False, False, True, True])
    found = situation_of(since, read, 2.0).tolist()
    assert [Situation(each).name for each in found] == [
        "FIRST_ROW",
        "NEVER_OBSERVED",
        "AFTER_SHORT_GAP",
        "AFTER_LONG_GAP",
    ]


def test_runs_of_equal_values() -> None:
    table = pd.DataFrame({"id": [*"aaaaaabb"], "t": [*range(6), 0, 1], "x": [1, 1, np.nan, 1, 2, 2, 2, 2.0]})
    series = from_table(table, id="id", time="t")
    assert run_lengths(series)[:, 0].tolist() == [1, 2, 0, 3, 1, 2, 1, 2]
    rng = np.random.default_rng(0)
    found = distribution(np.round(rng.normal(size=5000), 1))  # one in 28 repeats
    assert found.repeats[0, 0] == 2 and found.repeats[0, 6] in (3, 4) and found.repeats[0, -1] == 0
    p = found.p_repeats(np.array([1, 2, 3, 9]), np.zeros(4, np.int64))
    assert p[0] == 1 and 0.03 < p[1] <= 0.1 and p[1] > p[2] >= p[3] == 0.0002  # the least that 5,000 can show
    steady = distribution(np.repeat(rng.normal(size=500), 10))  # a variable that mostly repeats
    assert not steady.repeats.any()


@pytest.mark.filterwarnings("ignore:'Temp' has the inferred kind 'nonnegative'")  # it is -18 degrees twice
@pytest.mark.data
@pytest.mark.parametrize(("name", "train"), [("ushcn", 300), ("physionet", 500)])
@pytest.mark.filterwarnings("ignore:Possible outlier")
def test_p_values_of_held_out_stations_and_patients(name: str, train: int, real_data, shared_cache) -> None:
    splits = cru.data.load(name, data_dir=real_data, cache=shared_cache, scaling=None).first(train, 1, 400)
    model = Forecaster("structural", progress=False).fit(as_table(splits.train), id="id", time="time")
    found = model.anomalies(as_table(splits.test)).to_pandas()
    found = found[~found["variable"].isin(np.array(model.names_)[model.calibration_.constant])]
    one = found.groupby("id").sample(1, random_state=0)["p_value"]  # series are independent, their rows are not
    assert len(one) > 200 and stats.kstest(one, "uniform").pvalue > 0.01
    assert stats.kstest(found["p_value"], "uniform").statistic < 0.03
    assert 0.0005 < (found["p_value"] < 0.001).mean() < 0.002
