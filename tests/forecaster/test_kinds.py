"""Kinds of values: inferred or declared, and predictions of possible values only."""

import itertools
import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cru import Forecaster
from cru.data import Scaler
from cru.errors import InputError
from cru.forecaster.calibration import Calibration
from cru.forecaster.kinds import Kinds, check_kinds, infer_kind, skewness
from cru.forecaster.masking import make_training_task
from cru.forecaster.normal_scores import NormalScores
from cru.forecaster.predictive_distribution import PredictiveDistribution, ScaledPrediction, calibrated

SKIES = np.array(["clear", "fog", "rain"])
DECLARED = {"rain": "nonnegative", "visits": "count", "ventilated": "binary", "sky": "category"}


def clinic(count: int = 40, length: int = 30, *, seed: int = 0) -> pd.DataFrame:
    """Series of all kinds that follow one hidden walk, with values missing."""
    rng = np.random.default_rng(seed)
    walk = rng.normal(size=(count, length))
    for step in range(1, length):  # stationary, so that the end of a series is like the rest
        walk[:, step] = 0.9 * walk[:, step - 1] + 0.4 * walk[:, step]
    noise = rng.normal(size=(3, *walk.shape))
    table = pd.DataFrame(
        {
            "s": np.arange(count).repeat(length),
            "t": np.tile(np.arange(float(length)), count),
            "temp": (20 + 3 * walk).ravel(),
            "rain": np.where(noise[0] < 0, 0, np.exp(walk + noise[0])).ravel(),
            "visits": rng.poisson(np.exp(0.3 + 0.5 * walk)).ravel().astype(float),
            "ventilated": (walk + 0.5 * noise[1] > 0).ravel().astype(float),
            "sky": SKIES[np.digitize(walk + 0.4 * noise[2], [-0.5, 0.5])].ravel(),
        }
    )
    for name in DECLARED:
        table.loc[rng.random(len(table)) < 0.1, name] = None if name == "sky" else np.nan
    return table


@pytest.fixture(scope="module")
def model() -> Forecaster:
    return Forecaster(epochs=2, progress=False).fit(clinic(), id="s", time="t", kinds={"sky": "category"})


def rules(said: pd.DataFrame, value: str) -> None:
    """Check that a column of predictions holds only possible values."""
    found = dict(tuple(said.groupby("variable")[value]))
    assert (found["rain"] >= 0).all() and (found["visits"] >= 0).all()
    assert (found["visits"] == found["visits"].round()).all()
    for name in ("ventilated", *(f"sky={sky}" for sky in SKIES)):
        assert found[name].isin([0.0, 1.0]).all()


RNG = np.random.default_rng(0)
GAMMA = RNG.gamma(0.7, 9, 3000)


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("switch", RNG.random(200) < 0.1, "binary"),
        ("visits", RNG.poisson(0.4, 300), "count"),
        ("calls", RNG.poisson(3, 300), "count"),
        ("overdispersed demand", RNG.negative_binomial(0.7, 0.3, 1000), "count"),
        ("heart rate in whole beats", RNG.normal(80, 12, 2000).round(), "number"),
        ("heart rate with a few zeros", np.append(RNG.normal(80, 12, 2000).round(), [0, 0]), "nonnegative"),
        ("glucose in mg/dl", RNG.lognormal(5, 0.45, 2000).round(), "nonnegative"),
        ("years", RNG.integers(1990, 2020, 500), "number"),
        ("whole degrees", RNG.normal(8, 9, 2000).round(), "number"),
        ("whole degrees of a warm place", RNG.normal(22, 4, 2000).round(), "number"),
        ("rain in whole millimetres", np.where(RNG.random(3000) < 0.6, 0, GAMMA).round(), "nonnegative"),
        ("rain in tenths of millimetres", np.where(RNG.random(3000) < 0.6, 0, 10 * GAMMA).round(), "nonnegative"),
        ("a score from 3 to 15", RNG.integers(3, 16, 500), "number"),
        ("zero and five", np.where(RNG.random(300) < 0.1, 5, 0), "nonnegative"),
        ("a constant", np.ones(300), "number"),
        ("few observations", np.array([0, 1, 1, 0]), "nonnegative"),
        ("nothing", np.array([]), "number"),
    ],
)
def test_a_kind_is_inferred_where_it_is_clear(name, values, kind):
    assert infer_kind(values.astype(float)) == kind


def test_skewness():
    values = RNG.gamma(2, 1, 500)
    assert skewness(values) == pytest.approx(stats.skew(values)) and skewness(np.ones(5)) == 0


def test_kinds_are_reported_and_the_user_overrides_them(model):
    assert dict(model.kinds_) == {"temp": "number", **DECLARED}
    assert model.kinds_.describe() == (
        "temp number (inferred); rain nonnegative (inferred); visits count (inferred); "
        "ventilated binary (inferred); sky category"
    )
    assert model.names_ == ("temp", "rain", "visits", "ventilated", "sky=clear", "sky=fog", "sky=rain")
    plain = dict.fromkeys(("rain", "visits", "ventilated"), "number")
    other = Forecaster("last-value", progress=False).fit(clinic().drop(columns="sky"), id="s", time="t", kinds=plain)
    assert set(other.kinds_.values()) == {"number"} and not other.calibration_.normal_scores.used.any()
    assert (other.forecast(horizon=2)["lo-90"] < 0).any()


def test_predictions_are_possible_values(model):
    said = model.forecast(horizon=4, level=[50, 90])
    for value in ("median", "lo-50", "hi-50", "lo-90", "hi-90"):
        rules(said, value)
    assert (said["lo-90"] <= said["lo-50"]).all() and (said["lo-50"] <= said["median"]).all()
    assert (said["median"] <= said["hi-50"]).all() and (said["hi-50"] <= said["hi-90"]).all()
    mean = said.pivot(index=["s", "t"], columns="variable", values="mean")
    assert mean["ventilated"].between(0, 1).all() and (mean["rain"] >= 0).all()
    np.testing.assert_allclose(mean[[f"sky={sky}" for sky in SKIES]].sum(axis=1), 1)
    filled = model.impute()
    assert (filled["variable"] == "sky=fog").sum() == clinic()["sky"].isna().sum()


def test_probabilities_are_calibrated(model):
    """On new series, events occur as often as predicted."""
    table = clinic(300, seed=7)
    later = table[table["t"] == 29]
    said = model.predict(table[table["t"] < 28], at=[29.0]).pivot(index="s", columns="variable", values="mean")
    later = later.set_index("s").reindex(said.index)
    for chance, event in (
        (said["ventilated"], later["ventilated"]),
        *((said[f"sky={sky}"], (later["sky"] == sky).where(later["sky"].notna())) for sky in SKIES),
    ):
        there = event.notna()
        chance, event = chance[there], event[there].astype(float)
        for low, high in ((0, 0.35), (0.35, 0.65), (0.65, 1)):
            some = chance.between(low, high)
            noise = 3 * np.sqrt(0.25 / max(1, some.sum()))
            assert abs(chance[some].mean() - event[some].mean()) < 0.05 + noise or some.sum() < 10
        brier, base = ((chance - event) ** 2).mean(), event.var()
        assert brier < 0.97 * base  # fog is between two categories and hard to predict


def test_quantiles_of_counts_are_those_of_their_distribution():
    """Of independent Poisson counts, the best forecast is the Poisson distribution."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"s": np.arange(500).repeat(20), "t": np.tile(np.arange(20.0), 500)})
    for rate in (0.6, 3.5):  # no probability below is near that of a count
        table["x"] = rng.poisson(rate, len(table))
        model = Forecaster("mean", progress=False).fit(table, id="s", time="t")
        said = model.forecast(horizon=1, every=1.0, level=[50, 80, 90]).iloc[0]
        assert said["median"] == stats.poisson.median(rate)
        for level in (50, 80, 90):
            low, high = (stats.poisson.ppf(0.5 + side * level / 200, rate) for side in (-1, 1))
            if low == 0:  # nothing is left out below, and the whole rest above
                high = stats.poisson.ppf(level / 100, rate)
            assert (said[f"lo-{level}"], said[f"hi-{level}"]) == (low, high), (rate, level)
        drawn = model.sample(400, table[table["s"] == 0], horizon=1, every=1.0)["value"]
        found = np.bincount(drawn.astype(int), minlength=4)[:4] / len(drawn)
        np.testing.assert_allclose(found, stats.poisson.pmf(np.arange(4), rate), atol=0.06)


def pinball(model: Forecaster, table: pd.DataFrame, variable: str) -> tuple[float, float]:
    """Return the pinball loss and the coverage of 90 % of several observations of each series."""
    loss, inside = [], []
    for time in (8.0, 15.0, 22.0, 29.0):
        said = model.predict(table[table["t"] < time - 1], at=[time], level=[50, 90])
        said = said[said["variable"] == variable].merge(table[table["t"] == time][["s", variable]], on="s").dropna()
        for name, p in (("lo-90", 0.05), ("lo-50", 0.25), ("median", 0.5), ("hi-50", 0.75), ("hi-90", 0.95)):
            missed = said[variable] - said[name]
            loss.append(float(np.maximum(p * missed, (p - 1) * missed).mean()))
        inside.append(float(said[variable].between(said["lo-90"], said["hi-90"]).mean()))
    return sum(loss), float(np.mean(inside))


def test_a_kind_is_no_worse_than_plain_numbers_and_covers(model):
    plain = Forecaster(epochs=2, progress=False).fit(
        clinic(), id="s", time="t", kinds={"sky": "category", **dict.fromkeys(("rain", "visits"), "number")}
    )
    table = clinic(400, seed=11)
    for variable, most in (("rain", 1.0), ("visits", 1.05)):
        (own, inside), (other, _) = (pinball(one, table, variable) for one in (model, plain))
        assert own < most * other, variable
        assert inside > 0.87, variable


def test_samples_are_possible_values_with_the_right_probabilities(model):
    table = clinic(2, seed=5)
    drawn = model.sample(400, table, horizon=2, every=1.0)
    rules(drawn, "value")
    share = drawn.groupby(["s", "t", "variable"])["value"].mean()
    said = model.forecast(table, horizon=2, every=1.0).set_index(["s", "t", "variable"])["mean"]
    events = [name for name in model.names_ if "=" in name or name == "ventilated"]
    apart = (share - said)[share.index.get_level_values("variable").isin(events)]
    assert apart.abs().max() < 0.01, "samples are stratified"
    sky = drawn[drawn["variable"].str.startswith("sky=")].groupby(["sample", "s", "t"])["value"].sum()
    assert (sky == 1).all()


def test_observed_values_stay_in_samples(model):
    table = clinic(2, seed=5).dropna()
    known = table.iloc[5]
    drawn = model.sample(3, table, at={known["s"]: [known["t"]]})
    value = dict(tuple(drawn.groupby("variable")["value"]))
    assert (value["visits"] == known["visits"]).all() and (value[f"sky={known['sky']}"] == 1).all()


def test_a_saved_model_and_a_stream_say_the_same(model, tmp_path):
    model.save(tmp_path / "model")
    again = Forecaster.load(tmp_path / "model")
    said = model.forecast(horizon=2, level=[50, 90])
    pd.testing.assert_frame_equal(again.forecast(horizon=2, level=[50, 90]), said)
    assert dict(again.kinds_) == dict(model.kinds_) and again.kinds_.declared == ("sky",)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "visits count (inferred)" in card and "sky category" in card
    table, live = clinic(3, seed=6), again.stream()
    live.update_many(table[table["s"] < 2])
    for row in table[table["s"] == 2].to_dict("records"):
        live.update(2, row["t"], {name: row[name] for name in ("temp", *DECLARED)})
    at = {"level": [50, 90]}
    whole = model.predict(table, at=[31.0], **at).set_index(["s", "variable"])
    for name in (0, 2):
        for variable, numbers in live.predict(name, 31.0, **at).items():
            assert numbers == pytest.approx(dict(whole.loc[(name, variable)][list(numbers)]), rel=1e-4, abs=1e-4)
    with pytest.raises(ValueError, match="Did you mean 'sky'"):
        live.update(0, 40.0, {"sky=fog": 1.0})


def test_a_damaged_kind_is_refused(model, tmp_path):
    from tests.forging import write_config

    model.save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for change in (
        {"kinds": {**config["kinds"]["kinds"], "temp": "colour"}},
        {"kinds": {**config["kinds"]["kinds"], "temp": "category"}},
        {"categories": {"sky": ["clear", "fog"]}},
        {"categories": {}},
        {"declared": ["nothing"]},
    ):
        write_config(tmp_path / "model", config | {"kinds": config["kinds"] | change})
        with pytest.raises(ValueError, match="kinds"):
            Forecaster.load(tmp_path / "model")
    damaged = json.loads(json.dumps(config))
    damaged["calibration"]["recalibration"]["logistic"][3][1] = -1.0
    write_config(tmp_path / "model", damaged)
    with pytest.raises(ValueError, match="no negative slope"):
        Forecaster.load(tmp_path / "model")


def test_every_form_of_a_table_gives_the_same(tmp_path):
    """Wide and long tables, pandas and polars, frames and files; categories that are texts or numbers."""
    table = clinic(30, 12).rename(columns={"temp": "air"})[["s", "t", "air", "sky"]]
    names = {"id": "s", "time": "t", "kinds": {"sky": "category"}}

    def forecast(frame, **more):
        found = Forecaster("last-value", progress=False).fit(frame, **names, **more).forecast(horizon=2)
        found = found.to_pandas() if isinstance(found, pl.DataFrame) else found
        return found.astype({"s": int, "variable": object})  # ids of a file are text

    first = forecast(table)
    assert set(first["variable"]) == {"air", *(f"sky={sky}" for sky in SKIES)}
    pd.testing.assert_frame_equal(forecast(pl.from_pandas(table)), first)
    table.to_csv(tmp_path / "table.csv", index=False)
    pd.testing.assert_frame_equal(forecast(tmp_path / "table.csv"), first)
    pd.testing.assert_frame_equal(forecast(table, values=["air", "sky"]), first)
    category = table.astype({"sky": "category"})
    pd.testing.assert_frame_equal(forecast(category), first)
    long = table.astype({"air": str}).melt(["s", "t"]).dropna()
    keys = ["s", "t", "variable"]
    melted = forecast(long, values="value", variable="variable")
    pd.testing.assert_frame_equal(
        melted.sort_values(keys, ignore_index=True), first.sort_values(keys, ignore_index=True)
    )
    numbers = table.assign(sky=table["sky"].map({"clear": 1, "fog": 2, "rain": 10}))
    coded = forecast(numbers)
    assert list(dict.fromkeys(coded["variable"])) == ["air", "sky=1", "sky=2", "sky=10"]
    np.testing.assert_array_equal(coded["mean"], first["mean"])
    numbers.to_csv(tmp_path / "numbers.csv", index=False)  # with 1.0, 2.0 and 10.0
    pd.testing.assert_frame_equal(forecast(tmp_path / "numbers.csv"), coded)


@pytest.fixture(scope="module")
def declared() -> Forecaster:
    return Forecaster("structural", progress=False).fit(clinic(30, 12), id="s", time="t", kinds=DECLARED)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("rain", -3.0, "not be negative, because its kind is 'nonnegative', got -3 in series '7' at time 4"),
        ("visits", -1.0, "integers of at least 0, because its kind is 'count', got -1 in series '7' at time 4"),
        ("visits", 1.5, "integers of at least 0, because its kind is 'count', got 1.5 in series '7' at time 4"),
        ("ventilated", 2.0, "hold 0 or 1, because its kind is 'binary', got 2 in series '7' at time 4"),
        ("sky", "hail", "training table, 'clear', 'fog', 'rain', got 'hail' in series '7' at time 4"),
    ],
)
def test_an_impossible_observation_is_refused(declared, column, value, words):
    """In training, in a later table and in a stream; the error names column, series and time."""
    wrong, live = clinic(30, 12), declared.stream()
    wrong.loc[(wrong["s"] == 7) & (wrong["t"] == 4), column] = value
    attempts = [
        lambda: declared.forecast(wrong, horizon=2),
        lambda: live.update_many(wrong),
        lambda: live.update(7, 4.0, {column: value}),
    ]
    if column != "sky":
        attempts += [lambda: Forecaster("last-value", progress=False).fit(wrong, id="s", time="t", kinds=DECLARED)]
    for attempt in attempts:
        with pytest.raises(InputError) as caught:
            attempt()
        said = str(caught.value)
        assert words in said and repr(column) in said and "leave it missing" in said, said
    assert len(live) == 0, "a refused table changes nothing"


def test_dates_in_errors_are_dates():
    table = clinic(30, 12).drop(columns="sky")
    table["t"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(table["t"], unit="D")
    table.loc[3, "rain"] = -1.0
    with pytest.raises(InputError, match="at time 2024-01-04"):
        Forecaster("last-value").fit(table, id="s", time="t", kinds={"rain": "nonnegative"})


def test_an_inferred_kind_refuses_nothing(model):
    table = clinic(30, 12)
    table.loc[:2, ["rain", "visits", "ventilated"]] = [-1.0, 0.5, 3.0]
    with pytest.warns(UserWarning, match="has the inferred kind"):
        said = model.forecast(table, horizon=2)
    assert np.isfinite(said["mean"]).all()
    assert model.stream().update(0, 1.0, {"rain": -1.0, "ventilated": 3.0})


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"snow": "count"}, "must name variables of the table, got 'snow'"),
        ({"rain": "coutn"}, "did you mean 'count'"),
        ({"t": "category"}, "must name variables of the table, got 't'"),
        ({"s": "category"}, "must name variables of the table, got 's'"),
        ({"temp": "category"}, "at most 50 categories"),
    ],
)
def test_a_wrong_declaration_is_refused(kinds, words):
    with pytest.raises(InputError, match=f"(?i){words}"):
        Forecaster("last-value").fit(clinic().drop(columns="sky"), id="s", time="t", kinds=kinds)


def test_text_without_a_kind_is_refused_with_a_hint():
    with pytest.raises(InputError, match="declare categories in `kinds`"):
        Forecaster("last-value").fit(clinic(), id="s", time="t")


def test_two_categories_at_one_time_are_refused():
    table = clinic(30, 12)
    table = pd.concat([table, table.iloc[[0]].assign(sky="rain" if table["sky"].iloc[0] == "fog" else "fog")])
    with pytest.raises(InputError, match="one category at a time"):
        Forecaster("last-value").fit(table, id="s", time="t", kinds={"sky": "category"}, duplicates="mean")


def test_a_category_that_never_changes_and_one_without_observations():
    table = clinic(30, 12).drop(columns="sky").assign(sky="fog")
    model = Forecaster("last-value", progress=False).fit(table, id="s", time="t", kinds={"sky": "category"})
    said = model.forecast(horizon=2)
    assert (said[said["variable"] == "sky=fog"]["mean"] == 1).all()
    with pytest.raises(InputError, match="column 'sky' must hold at least one"):
        Forecaster("last-value").fit(table.assign(sky=np.nan), id="s", time="t", kinds={"sky": "category"})


def test_plain_numbers_are_not_recalibrated(default):
    """A table of plain numbers has the quantiles of its standardised errors, as they are."""
    assert set(default.kinds_.values()) == {"number"}
    found = default.calibration_
    assert not found.normal_scores.used.any()
    errors = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_array_equal(found.normal_scores.errors(errors, errors), errors)
    np.testing.assert_array_equal(found.kinds.possible(errors), errors)


def predictions(seed: int, size: float) -> tuple[ScaledPrediction, Scaler, Calibration, np.ndarray]:
    """Make scaled predictions of one variable of each kind, possibly extreme, and a calibration."""
    rng = np.random.default_rng(seed)
    kinds = Kinds(
        {"temp": "number", "rain": "nonnegative", "visits": "count", "on": "binary", "sky": "category"},
        {"sky": ("a", "b", "c")},
    )
    count, width = 20, len(kinds.columns)
    scaler = Scaler(tuple(rng.uniform(0, 3, width)), tuple(rng.uniform(0.1, 5, width)))
    mean, center = size * rng.normal(size=(2, count, width))
    lower, upper = np.exp(rng.normal(size=(2, count, width)))
    errors = rng.standard_t(3, (1000, width)) * size
    near, every, at_lowest = rng.normal(size=errors.shape), np.ones(errors.shape, bool), rng.random(errors.shape) < 0.3
    skewed = kinds.are("nonnegative", "count")
    again = NormalScores.fit(errors, near, errors, every, skewed, at_lowest & kinds.are("nonnegative"))
    made = Calibration.fit(
        errors, np.ones(errors.shape, bool), np.ones(errors.shape), series=100, constant=np.zeros(width, bool)
    )
    made = Calibration(**vars(made) | {"kinds": kinds, "normal_scores": again})
    return ScaledPrediction(mean, center, lower, upper), scaler, made, rng.random((count, width))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.1, 1.0, 10.0]))
def test_whatever_the_model_says_is_made_possible(seed, size):
    said, scaler, calibration, uniform = predictions(seed, size)
    lead, kinds = np.ones(said.mean.shape), calibration.kinds
    answer = calibrated(said, lead, scaler=scaler, calibration=calibration, levels=(50.0, 90.0))
    ordered = [answer.bounds["lo-90"], answer.bounds["lo-50"], answer.median, *list(answer.bounds.values())[1::2]]
    for numbers in ordered:
        assert not kinds.impossible(numbers, np.ones(numbers.shape, bool)).any()
    assert all((low <= high).all() for low, high in itertools.pairwise(ordered))
    assert ((answer.mean >= 0) & (answer.mean <= 1))[:, kinds.is_event].all() and (answer.mean[:, 1:] >= 0).all()
    np.testing.assert_allclose(answer.mean[:, kinds.groups[0]].sum(1), 1)
    drawn = PredictiveDistribution(said, lead, scaler=scaler, calibration=calibration).draw(uniform)
    assert not kinds.impossible(drawn, np.ones(drawn.shape, bool)).any()
    assert (drawn[:, kinds.groups[0]].sum(1) == 1).all()


def test_the_columns_of_a_category_are_withheld_together(model):
    task = make_training_task(model.history_, 0)
    names = np.array(model.names_)
    sky = task.hidden[:, np.char.startswith(names, "sky=")]
    assert sky.any() and (sky == sky[:, :1]).all()
    other = task.hidden[:, names == "temp"]
    assert (other != sky[:, :1]).any()


def test_kinds_survive_json():
    kinds = Kinds({"sky": "category", "x": "number"}, {"sky": ("1", "2")}, ("sky",))
    again = Kinds.from_dict(json.loads(json.dumps(kinds.to_dict())))
    assert (again.columns, again.declared, dict(again)) == (kinds.columns, kinds.declared, dict(kinds))
    assert check_kinds(None) == {}
    with pytest.raises(InputError, match="must be a mapping"):
        check_kinds(["rain"])


def test_nothing_is_warned_about_on_the_training_table(declared):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declared.forecast(clinic(30, 12), horizon=1)


@pytest.mark.filterwarnings("ignore:Predictions extend")
def test_intervals_of_all_levels_are_nested(model):
    """A higher level never lowers the upper bound, also where an interval begins to start at zero."""
    levels = list(range(2, 99, 4))
    said = model.predict(clinic(20, seed=3), at=[10.5, 31.0], level=levels)
    said = said[said["variable"].isin(["temp", "rain", "visits"])]
    for bound, sign in (("lo", -1), ("hi", 1)):
        wide = said[[f"{bound}-{level}" for level in levels]].to_numpy()
        assert (sign * np.diff(wide, axis=1) >= 0).all(), bound
