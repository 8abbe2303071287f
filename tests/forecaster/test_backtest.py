"""Backtests: scores against a computation by hand, no leakage, refitting, naive models, errors."""

import dataclasses
import sys
from itertools import count

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cru import Forecaster, progress
from cru.forecaster.backtest_cuts import CUTS
from cru.forecaster.naive_models import NAIVE_MODELS
from cru.models.naive import LastValue
from tests.forecaster.conftest import stations
from tests.test_progress import Terminal

GRID = (10, 30, 50, 70, 90)


class Shifted(LastValue):
    """The last value, and two standard deviations more: worse than the last value."""

    def rule(self, batch):
        return super().rule(batch) + 2


@pytest.fixture(scope="module")
def small() -> pd.DataFrame:
    """Three series with two variables at irregular times."""
    rng = np.random.default_rng(4)
    parts = []
    for name in "abc":
        day = np.sort(rng.choice(200, 60, replace=False)) / 4
        values = rng.normal(0, 1, (60, 2)).cumsum(0)
        values[rng.random(values.shape) < 0.3] = np.nan
        parts.append(pd.DataFrame({"id": name, "day": day, "x": values[:, 0], "y": 10 + 5 * values[:, 1]}))
    return pd.concat(parts, ignore_index=True).dropna(subset=["x", "y"], how="all")


@pytest.fixture(scope="module")
def last(small) -> Forecaster:
    return Forecaster("last-value", progress=False).fit(small, id="id", time="day")


def by_hand(table: pd.DataFrame, cuts: list[float], horizon: float) -> pd.DataFrame:
    """The values after each cut, and the last value of the same variable before it."""
    rows = []
    for name, series in table.groupby("id"):
        for cut in cuts:
            past = series[series["day"] <= cut]
            later = series[(series["day"] > cut) & (series["day"] <= cut + horizon)]
            for variable in ("x", "y"):
                known = past[variable].dropna()
                for _, row in later.dropna(subset=[variable]).iterrows():
                    rows.append((name, cut, row["day"], variable, row[variable], known.iloc[-1]))
    return pd.DataFrame(rows, columns=["id", "cut", "day", "variable", "observed", "last"])


def test_predictions_and_scores_are_those_of_a_computation_by_hand(small, last):
    found = last.backtest(horizon=8, cuts=[20.0, 30.5])
    expected = by_hand(small, [20.0, 30.5], 8).sort_values(["id", "cut", "day", "variable"]).reset_index(drop=True)
    said = found.predictions
    keys = ["id", "cut", "day", "variable", "observed"]
    pd.testing.assert_frame_equal(said[keys], expected[keys], check_dtype=False)
    np.testing.assert_allclose(said["lead"], said["day"] - said["cut"])
    np.testing.assert_allclose(said["mean"], expected["last"], rtol=1e-5, atol=1e-5)
    scores = found.scores("variable").set_index(["variable", "model"])
    for variable, part in said.groupby("variable"):
        row = scores.loc[variable, "model"]
        error = part["observed"] - part["median"]
        assert row["count"] == len(part)
        assert row["mae"] == pytest.approx(error.abs().mean(), rel=1e-5)
        assert row["rmse"] == pytest.approx(np.sqrt(((part["observed"] - part["mean"]) ** 2).mean()), rel=1e-5)
        inside = (part["lo-90"] <= part["observed"]) & (part["observed"] <= part["hi-90"])
        assert row["coverage-90"] == pytest.approx(inside.mean())
        assert row["width-50"] == pytest.approx((part["hi-50"] - part["lo-50"]).mean(), rel=1e-5)
        rule = scores.loc[variable, "last-value"]
        assert rule["mae"] == pytest.approx(row["mae"], rel=1e-4), "the model is this naive model"


def test_the_crps_is_twice_the_mean_pinball_loss(small, last):
    said = last.backtest(horizon=8, cuts=[20.0, 30.5], level=GRID)
    frame, loss = said.predictions, 0.0
    for level in GRID:
        for name, p in ((f"lo-{level}", 0.5 - level / 200), (f"hi-{level}", 0.5 + level / 200)):
            error = frame["observed"] - frame[name]
            loss = loss + np.where(error > 0, p * error, (p - 1) * error) / 10
    expected = pd.Series(2 * loss).groupby(frame["variable"]).mean()
    scores = said.scores("variable").query("model == 'model'").set_index("variable")["crps"]
    pd.testing.assert_series_equal(scores, expected, check_names=False, rtol=1e-5)


def test_scores_by_lead_time_and_series_have_the_values_of_their_group(small, last):
    found = last.backtest(horizon=8, cuts=[20.0, 30.5])
    frame = found.predictions.assign(error=lambda part: (part["observed"] - part["median"]).abs())
    scores = found.scores().query("model == 'model'")
    assert set(scores["lead"]) == {"up to 1", "1 to 2", "2 to 4", "4 to 8"}
    ranges = pd.cut(frame["lead"], [0, 1, 2, 4, 8], labels=["up to 1", "1 to 2", "2 to 4", "4 to 8"]).astype(str)
    expected = frame.groupby(["variable", ranges.rename("range")])["error"].mean()
    for row in scores.itertuples():
        assert row.mae == pytest.approx(expected[row.variable, row.lead], rel=1e-5)
    series = found.scores(["series", "variable"]).query("model == 'model'").set_index(["id", "variable"])["mae"]
    pd.testing.assert_series_equal(series, frame.groupby(["id", "variable"])["error"].mean(), check_names=False)
    unit = small[["x", "y"]].std(ddof=0)
    pooled = (frame["error"] / frame["variable"].map(unit)).mean()
    assert found.scores(()).query("model == 'model'")["mae"].item() == pytest.approx(pooled, rel=1e-5)


def test_a_number_of_cuts_is_spaced_before_the_end_of_each_series(small, last):
    found = last.backtest(horizon=5, every=3, cuts=4).predictions
    for name, series in small.groupby("id"):
        times = series["day"].to_numpy()
        wanted = times[-1] - 5 - 3 * np.arange(3, -1, -1)
        expected = [times[times >= cut - 1e-9][0] for cut in wanted]
        assert found.loc[found["id"] == name, "cut"].unique().tolist() == expected
    assert (found["lead"] > 0).all() and (found["lead"] <= 5).all()


@pytest.mark.parametrize("refit", [False, True])
def test_values_after_the_cut_never_influence_a_prediction(small, last, refit):
    cut = 30.0
    changed = small.copy()
    changed.loc[changed["day"] > cut, ["x", "y"]] += 100.0
    options = {"horizon": 8, "cuts": [cut], "refit": refit}
    before, after = (last.backtest(table, **options).predictions for table in (small, changed))
    assert not np.allclose(before["observed"], after["observed"])
    pd.testing.assert_frame_equal(before.drop(columns="observed"), after.drop(columns="observed"))


def test_values_after_the_horizon_influence_nothing(small, last):
    """Neither the model nor the naive models, which are fitted at every cut."""
    changed = small.copy()
    changed.loc[changed["day"] > 38, "x"] += 100.0
    before, after = (last.backtest(table, horizon=8, cuts=[30.0]).scores("variable") for table in (small, changed))
    pd.testing.assert_frame_equal(before, after)


def test_a_prediction_is_that_of_predict_on_the_past(default):
    table = stations(8, 25, seed=12)
    cut = pd.Timestamp("2024-03-01")
    found = default.backtest(table, horizon="15D", cuts=[cut]).predictions
    assert (found["lead"] == found["date"] - found["cut"]).all()
    later = found[["station", "date"]].drop_duplicates()
    said = default.predict(table[table["date"] <= cut], at=later, level=[50, 90])
    both = found.merge(said, on=["station", "date", "variable"], suffixes=("", "_predict"))
    assert len(both) == len(found)
    for name in ("mean", "median", "std", "lo-50", "hi-90"):
        np.testing.assert_allclose(both[name], both[f"{name}_predict"], rtol=1e-4, atol=1e-5)


def test_refit_fits_to_the_observations_before_the_cut(small):
    fitted = Forecaster("mean", progress=False, seed=3).fit(small, id="id", time="day")
    cut = 30.0
    again = Forecaster("mean", progress=False, seed=3).fit(small[small["day"] <= cut], id="id", time="day")
    found = fitted.backtest(horizon=8, cuts=[cut], refit=True).predictions
    expected = again.predict(small[small["day"] <= cut], at=found[["id", "day"]].drop_duplicates(), level=[50, 90])
    both = found.merge(expected, on=["id", "day", "variable"], suffixes=("", "_expected"))
    for name in ("mean", "lo-50", "hi-90"):
        np.testing.assert_allclose(both[name], both[f"{name}_expected"], rtol=1e-6)
    plain = fitted.backtest(horizon=8, cuts=[cut]).predictions
    assert not np.allclose(found["mean"], plain["mean"]), "else refitting shows nothing"


def test_a_refit_that_fails_names_the_cut(small, last):
    with pytest.raises(ValueError, match="column 'y' must hold at least one observation") as error:
        last.backtest(small[small["id"] == "a"], horizon=8, cuts=[3.0], refit=True)
    assert "up to the cut at 3" in error.value.__notes__[0]


def test_polars_gives_polars_and_the_same_numbers(table, repeater):
    frames = [repeater.backtest(one, horizon="10D", cuts=2) for one in (table, pl.from_pandas(table))]
    pandas, polars = (found.predictions for found in frames)
    assert isinstance(polars, pl.DataFrame) and polars["lead"].dtype == pl.Duration
    np.testing.assert_allclose(polars["mean"].to_numpy(), pandas["mean"].to_numpy())
    assert isinstance(frames[1].scores(), pl.DataFrame)
    assert frames[1].scores()["mae"].to_list() == frames[0].scores()["mae"].tolist()


@pytest.mark.slow
def test_processes_give_the_same_numbers(table, repeater):
    one, two = (repeater.backtest(horizon="10D", cuts=2, n_jobs=jobs) for jobs in (1, 2))
    pd.testing.assert_frame_equal(one.predictions, two.predictions)
    pd.testing.assert_frame_equal(one.scores(), two.scores())


def test_small_chunks_give_the_same_numbers(table, repeater, monkeypatch):
    whole = repeater.backtest(horizon="10D", cuts=2)
    monkeypatch.setattr("cru.forecaster.backtest_cuts.CUTS", dataclasses.replace(CUTS, entries_at_once=100))
    parts = repeater.backtest(horizon="10D", cuts=2)
    pd.testing.assert_frame_equal(whole.predictions, parts.predictions)
    pd.testing.assert_frame_equal(whole.scores(), parts.scores())


def test_every_naive_model_is_in_the_scores_and_one_is_the_reference(repeater):
    scores = repeater.backtest(horizon="10D", cuts=3).scores("variable")
    for _, part in scores.groupby("variable"):
        assert set(part["model"]) == {"model", *NAIVE_MODELS}
        best = part[part["model"] != "model"].sort_values("mae").iloc[0]
        reference = part[part["better"] == "reference"]
        assert len(reference) == 1 and reference["mae"].item() == best["mae"]
        assert (part["difference"] == part["mae"] - best["mae"]).all()


def test_the_season_of_the_naive_models_is_a_day():
    hours = pd.date_range("2024-01-01", periods=24 * 14, freq="h")
    value = 10 * np.sin(2 * np.pi * np.arange(len(hours)) / 24)
    table = pd.DataFrame({"time": hours, "x": value + np.random.default_rng(0).normal(0, 0.1, len(hours))})
    model = Forecaster("last-value", progress=False).fit(table, time="time")
    scores = model.backtest(horizon="24h", cuts=5).scores(()).set_index("model")
    assert scores.loc["seasonal-naive", "mae"] < 0.2 < scores.loc["last-value", "mae"]
    assert scores.loc["model", "better"] == "no" and scores.loc["seasonal-naive", "better"] == "reference"


def test_intervals_of_naive_models_cover_white_noise():
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"id": np.repeat(np.arange(40), 60), "t": np.tile(np.arange(60.0), 40)})
    table["x"] = rng.normal(0, 3, len(table))
    model = Forecaster("mean", progress=False).fit(table, id="id", time="t")
    scores = model.backtest(horizon=10, cuts=3).scores(()).set_index("model")
    assert scores["coverage-90"].drop("seasonal-naive").between(0.86, 0.94).all()
    assert scores.loc["series-mean", "width-90"] == pytest.approx(2 * 1.645 * 3, rel=0.1)


def test_a_model_that_loses_to_a_naive_model_is_reported_once():
    table = stations(40, 30, seed=2)
    with pytest.warns(UserWarning, match=r"better than the model on withheld values of 'high' \(.*'low' \(") as caught:
        Forecaster(f"{__name__}:Shifted", progress=False).fit(table, id="station", time="date")
    assert len(caught) == 1


def test_the_scores_of_fit_have_the_form_of_a_backtest(default):
    details = pd.DataFrame(default.scores_["details"])
    columns = ["coverage-50", "width-50", "coverage-90", "width-90", "difference", "low", "high", "better"]
    assert details.columns.tolist() == ["variable", "lead", "model", "count", "mae", "rmse", "crps", *columns]
    assert set(details["model"]) == {"model", "structural", *NAIVE_MODELS}
    for row in default.scores_["table"]:
        part = details[(details["variable"] == row["variable"]) & (details["lead"] == row["lead"])]
        ratio = part.set_index("model")["mae"] / pd.Series({name: row[name] for name in part["model"]})
        np.testing.assert_allclose(ratio, ratio.iloc[0], rtol=1e-3)  # the standard deviation
    model = details[details["model"] == "model"]
    assert np.average(model["coverage-90"], weights=model["count"]) == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"horizon": 0}, "`horizon` must be longer than zero, got 0."),
        ({"horizon": "3D"}, "`horizon` must be a number, as the times of the training table are, got '3D'."),
        ({"horizon": 500}, "`horizon` must be so short that each cut has observations before and after it, got 500."),
        ({"every": -1}, "`every` must be longer than zero, got -1."),
        ({"cuts": 0}, "`cuts` must be from 1 to 1000, or a list of times, got 0."),
        ({"cuts": 2.5}, "`cuts` must be an integer, or a list of times, got 2.5."),
        ({"cuts": []}, "`cuts` must have from 1 to 1000 times, got 0."),
        ({"cuts": ["2024-01-01"]}, "`cuts` must be numbers, as the times of the training table are"),
        (
            {"cuts": [900.0]},
            "`cuts` must have a time with observations before it, and within `horizon` after it, got [900.0]. Choose "
            "earlier times.",
        ),
        ({"cuts": [20.0], "every": 2}, "`every` must be left out if `cuts` is a list of times."),
        ({"level": 0}, "`level` must be per cent from 1 to 99.8"),
        ({"n_jobs": 0}, "`n_jobs` must be an integer of at least 1, got 0."),
    ],
)
def test_wrong_arguments_are_one_sentence(last, options, sentence):
    with pytest.raises(ValueError) as error:
        last.backtest(**({"horizon": 5} | options))
    assert str(error.value).startswith(sentence)


def test_wrong_groups_are_one_sentence(last, small):
    found = last.backtest(horizon=5, cuts=1)
    with pytest.raises(ValueError, match=r"`by` must have entries of 'variable', 'lead', 'series', got 'varible'. Did"):
        found.scores("varible")
    with pytest.raises(ValueError, match="`by` must have each entry once"):
        found.scores(["lead", "lead"])
    single = Forecaster("mean", progress=False).fit(small[small["id"] == "a"].drop(columns="id"), time="day")
    with pytest.raises(ValueError, match="`by` must not have 'series' for a table without ids"):
        single.backtest(horizon=5, cuts=1).scores("series")


def test_a_column_with_the_name_of_a_column_of_the_answer(small):
    model = Forecaster("mean", progress=False).fit(small.rename(columns={"id": "cut"}), id="cut", time="day")
    with pytest.raises(ValueError, match="column 'cut' must not have the name of a column of a backtest"):
        model.backtest(horizon=5)


@pytest.mark.filterwarnings("ignore:Predictions extend 2W past the last observation")
@pytest.mark.parametrize(
    ("horizon", "names"),
    [("2W", ["up to 42h", "1W to 2W"]), ("2D", ["up to 6h", "1D to 2D"]), ("48h", ["up to 6h", "24h to 48h"])],
)
def test_lead_times_are_written_in_the_unit_of_the_horizon(horizon, names):
    dates = pd.date_range("2024-01-01", periods=400, freq="6h")
    frame = pd.DataFrame({"time": dates, "load": np.arange(400.0)})
    scores = Forecaster("mean", progress=False).fit(frame, time="time").backtest(horizon=horizon, cuts=3).scores("lead")
    found = list(dict.fromkeys(scores["lead"]))
    assert [found[0], found[-1]] == names


def test_a_backtest_shows_a_bar_in_a_notebook_and_on_a_terminal(small, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress.time, "monotonic", count(0.0, 10.0).__next__)
    Forecaster("mean").fit(small, id="id", time="day").backtest(horizon=3, cuts=2)
    assert "backtest  " in terminal.getvalue() and "2/2" in terminal.getvalue()
