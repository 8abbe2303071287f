"""Known and static columns: their features, their use in every method, and what is refused."""

import copy
import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from cru import Forecaster
from cru.data.series import make_series
from cru.errors import InputError
from cru.forecaster.inputs import INPUT, INPUTS, KNOWN, STATIC, Inputs
from cru.forecaster.table_io import Columns, check_known, check_static, read_training_table
from tests.forecaster.conftest import FAR

ROLES = {"known": {"plan": None, "dose": 0, "price": "last"}, "static": ["age", "ward"]}
COLUMNS = {"id": "s", "time": "t", "values": ["y", "z"]}
WARDS = ["north", "south", "west"]


def clinic(count: int = 40, length: int = 24, *, seed: int = 0) -> pd.DataFrame:
    """Series that follow a plan, doses, a price that is rarely written down, and the ward of the series."""
    rng = np.random.default_rng(seed)
    size = count * length
    number = np.arange(count).repeat(length)
    table = pd.DataFrame({"s": number, "t": np.sort(rng.uniform(0, length, (count, length)), 1).ravel().round(3)})
    table["plan"] = rng.normal(size=size)
    table["dose"] = np.where(rng.random(size) < 0.2, rng.gamma(3, 1, size), np.nan)
    table["price"] = np.where(rng.random(size) < 0.3, rng.normal(5, 1, size), np.nan)
    table["age"] = rng.integers(20, 90, count).astype(float)[number]
    table["ward"] = np.array(WARDS)[number % 3]
    noise = 0.2 * rng.normal(size=(2, size))
    table["y"] = 2 * table["plan"] + 3 * (number % 3) + noise[0]
    table["z"] = table["dose"].fillna(0) + noise[1]
    table.loc[rng.random(size) < 0.2, "y"] = np.nan
    table.loc[rng.random(size) < 0.3, ["y", "z"]] = np.nan  # rows with known values only
    return table


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return clinic()


@pytest.fixture(scope="module")
def model(table) -> Forecaster:
    return Forecaster(epochs=3, progress=False).fit(table, **COLUMNS, **ROLES)


@pytest.fixture(scope="module")
def blind(table) -> Forecaster:
    return Forecaster("structural", progress=False).fit(table[["s", "t", "y", "z"]], id="s", time="t")


@pytest.fixture(scope="module")
def new() -> pd.DataFrame:
    return clinic(6, 20, seed=1)


def past(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["t"] < 12]


def future(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[table["t"] >= 12, ["s", "t", "plan", "dose", "price"]]


def mae(said: pd.DataFrame, truth: pd.DataFrame) -> float:
    both = said.merge(truth.melt(["s", "t"], ["y", "z"], "variable"), on=["s", "t", "variable"]).dropna()
    return float((both["median"] - both["value"]).abs().groupby(both["variable"]).mean()["y"])


@FAR
def test_known_and_static_values_lower_the_error(model, blind, new):
    with_inputs = mae(model.predict(past(new), at=future(new)), new)
    without = mae(blind.predict(past(new)[["s", "t", "y", "z"]], at=future(new)[["s", "t"]]), new)
    assert with_inputs < 0.6 * without
    assert model.scores_["r2"] > blind.scores_["r2"] + 0.2
    assert set(model.names_) == {"y", "z"} and set(model.predict(past(new), at=future(new))["variable"]) == {"y", "z"}


def make(times: list[float], known: np.ndarray, static: np.ndarray | None = None):
    static = np.zeros((1, 0)) if static is None else static
    count = len(static)
    length = len(times) // count
    return make_series(
        np.array(times),
        np.ones((len(times), 1)),
        np.arange(count + 1) * length,
        ids=range(count),
        names=["y"],
        per_time={KNOWN: known},
        per_series={STATIC: static},
    )


def plain(inputs: Inputs) -> Inputs:
    """The same features, not standardised and without a limit."""
    size = inputs.expected_size
    return Inputs(
        known=inputs.known,
        static=inputs.static,
        center=inputs.center,
        gap=inputs.gap,
        shift=(0.0,) * size,
        scale=(1.0,) * size,
    )


def test_features_of_events_and_levels(monkeypatch):
    """Compare with a direct double loop."""
    monkeypatch.setattr("cru.forecaster.inputs.INPUT", replace(INPUT, max_deviations=np.inf))
    rng = np.random.default_rng(0)
    times = [*np.sort(rng.uniform(0, 20, 30)), *np.sort(rng.uniform(5, 40, 30))]
    dose = np.where(rng.random(60) < 0.3, rng.gamma(2, 1, 60), np.nan)
    level = np.where(rng.random(60) < 0.5, rng.normal(3, 1, 60), np.nan)
    series = make(times, np.stack([dose, level], 1), np.zeros((2, 0)))
    found = Inputs.fit(series, {"dose": 0.0, "level": "last"}, {}, gap=1.5)
    rows = plain(found).encode(series).per_time[INPUTS]
    size = len(INPUT.time_constants)
    value, traces = rows[:, :2], rows[:, 2 : 2 + 2 * size].reshape(60, 2, size)
    coming = rows[:, 2 + 2 * size :]
    center = np.nanmean(level)
    for begin in (0, 30):
        held = 0.0
        averages = None
        for k in range(begin, begin + 30):
            own = np.arange(begin, begin + 30)
            u, t = np.nan_to_num(dose), np.array(times)
            before, after = own[own <= k], own[own > k]
            for n, scale in enumerate(INPUT.time_constants):
                tau = scale * 1.5
                assert traces[k, 0, n] == pytest.approx((u[before] * np.exp(-(t[k] - t[before]) / tau)).sum())
                assert coming[k, n] == pytest.approx((u[after] * np.exp(-(t[after] - t[k]) / tau)).sum())
            earlier = held
            held = level[k] - center if np.isfinite(level[k]) else held
            if averages is None:
                averages = [held] * size
            else:
                decays = [np.exp(-(t[k] - t[k - 1]) / (scale * 1.5)) for scale in INPUT.time_constants]
                averages = [a * w + (1 - w) * earlier for a, w in zip(averages, decays, strict=True)]
            assert value[k] == pytest.approx([u[k], held])
            assert traces[k, 1] == pytest.approx([average - held for average in averages])


def test_rows_in_two_parts_have_the_same_features():
    rng = np.random.default_rng(1)
    known = np.where(rng.random((20, 2)) < 0.5, rng.normal(size=(20, 2)), np.nan)
    series = make(np.sort(rng.uniform(0, 9, 20)).tolist(), known, np.array([[3.0, np.nan]]))
    inputs = plain(Inputs.fit(series, {"a": 0.0, "b": "last"}, {"n": None, "c": ("x", "y")}, gap=0.5))
    size = inputs.size - inputs.later
    whole, end = inputs.advance(series)
    first = np.arange(20) < 8
    one, middle = inputs.advance(series.keep(first))
    two, after = inputs.advance(series.keep(~first), middle)
    parts = np.concatenate([one.per_time[INPUTS], two.per_time[INPUTS]])
    assert np.allclose(parts[:, :size], whole.per_time[INPUTS][:, :size])
    assert all(np.allclose(a, b) for a, b in zip(after, end, strict=True))


def test_static_numbers_and_categories_are_features():
    series = make([0.0, 1.0, 2.0], np.zeros((3, 0)), np.array([[40.0, 0], [60.0, 1], [np.nan, np.nan]]))
    inputs = Inputs.fit(series, {}, {"age": None, "ward": ("a", "b")}, gap=1.0)
    age, no_age, a, b, no_ward = inputs.encode(series).per_time[INPUTS].T
    assert age[0] == -age[1] < 0 == age[2] and a[0] > 0 > a[1] and b[1] > 0 > b[0] and a[2] == b[2] == 0
    assert no_age[2] == no_ward[2] > 0 > no_age[0]


def test_a_feature_that_never_varies_in_training_is_not_used():
    series = make([0.0, 1.0], np.array([[1.0], [1.0]]))
    inputs = Inputs.fit(series, {"k": None}, {}, gap=1.0)
    other = make([0.0, 1.0], np.array([[1.0], [9.0]]))
    assert (inputs.encode(other).per_time[INPUTS] == 0).all()


@FAR
def test_a_stream_gives_the_numbers_of_the_batch_call(model, new):
    exact = copy.copy(model)
    exact.model_ = copy.deepcopy(model.model_).double()
    early, at = past(new), future(new).groupby("s").head(1)
    expected = exact.predict(early, at=at)
    one, many, parts = exact.stream(), exact.stream(), exact.stream()
    for row in early.sample(frac=1, random_state=0).sort_values("t", kind="stable").to_dict("records"):
        values = {name: value for name, value in row.items() if name not in ("s", "t")}
        assert one.update(row["s"], row["t"], values)
    many.update_many(early)
    parts.update_many(early[early["t"] < 2])
    parts.update_many(early[early["t"] >= 2])
    for stream in (one, many, parts):
        for row in at.to_dict("records"):
            known = {name: row[name] for name in ("plan", "dose", "price")}
            said = stream.predict(row["s"], row["t"], known=known)
            for variable, numbers in said.items():
                batch = expected[(expected["s"] == row["s"]) & (expected["variable"] == variable)].iloc[0]
                assert numbers["mean"] == pytest.approx(batch["mean"], abs=1e-8 * batch["std"] + 1e-9)
                assert numbers["std"] == pytest.approx(batch["std"], rel=1e-8)
    moment = float(at["t"].max())
    frame = at.assign(t=moment)
    batch, streamed = exact.predict(early, at=frame), many.predict_many([moment], ids=range(6), known=frame)
    pd.testing.assert_frame_equal(streamed, batch, rtol=1e-7)
    judged = exact.anomalies(new).query("t >= 12").groupby(["s", "variable"]).head(1).set_index(["s", "variable"])
    first = new[new["t"] >= 12].dropna(subset=["y"]).groupby("s").head(1)
    rows = new[(new["t"] >= 12) & (new["s"] == first["s"].iloc[0]) & (new["t"] <= first["t"].iloc[0])]
    for row in rows.to_dict("records"):
        found = many.anomalies(row["s"], row["t"], {n: row[n] for n in row if n not in ("s", "t")}, update=True)
    expected_value = judged.loc[(first["s"].iloc[0], "y"), "p_value"]
    assert found["y"]["p_value"] == pytest.approx(expected_value, abs=1e-6)


@FAR
def test_a_stream_is_saved_with_its_inputs(model, new, tmp_path):
    stream = model.stream()
    stream.update_many(past(new))
    stream.update("99", 1.0, {"plan": 1.0, "dose": 2.0}, static={"age": 40, "ward": "west"})  # known values only
    stream.save(tmp_path / "state")
    again = model.stream(state=tmp_path / "state")
    for name in (0, 99):
        asked = {"known": {"plan": 0.5}, "level": 50}
        assert again.predict(name, 20.0, **asked) == stream.predict(name, 20.0, **asked)
    assert stream.predict(99, 20.0, known={"plan": 0.5}) != stream.predict(98, 20.0, known={"plan": 0.5})


@pytest.mark.parametrize("dose", [None, np.nan, 0.0, 4.0, 7.0])
def test_the_last_row_of_a_stream_counts_once(model, new, dose):
    """Its known values may be asked for again, or corrected, at its own time."""
    exact = copy.copy(model)
    exact.model_ = copy.deepcopy(model.model_).double()
    early = past(new)[past(new)["s"] == 0].dropna(subset=["y"]).reset_index(drop=True)
    early.loc[len(early) - 1, "dose"] = 4.0
    last = early.iloc[-1]
    stream = exact.stream()
    stream.update_many(early)
    moments = [last["t"], last["t"] + 0.5, last["t"] + 3]
    frame = pd.DataFrame({"s": 0, "t": moments, "plan": [last["plan"], 0.3, -0.2]})
    if dose is not None:
        frame["dose"] = [dose, 0.0, 2.0]
    expected = exact.predict(early, at=frame)
    said = stream.predict_many(moments, known=frame)
    assert said["mean"].to_numpy() == pytest.approx(expected["mean"].to_numpy(), rel=1e-6)
    pd.testing.assert_frame_equal(said.iloc[2:], expected.iloc[2:], rtol=1e-6)
    row = frame.iloc[0].drop(["s", "t"]).to_dict()
    for numbers, mean in zip(stream.predict(0, last["t"], known=row).values(), expected["mean"], strict=False):
        assert numbers["mean"] == pytest.approx(mean, rel=1e-6)
    stream.update(0, last["t"], row)  # known values only
    later = stream.predict_many(moments[1:], known=frame)
    pd.testing.assert_frame_equal(later, expected.iloc[2:].reset_index(drop=True), rtol=1e-6)


def test_judging_with_update_keeps_rows_without_observations(model):
    judged, updated = model.stream(), model.stream()
    rows = [(1.0, {"plan": 0.0, "dose": 5.0}), (2.0, {"plan": 0.5, "y": 1.0}), (3.0, {"plan": 0.0, "dose": 5.0})]
    for moment, values in rows:
        static = {"ward": "west", "age": 50}
        judged.anomalies("a", moment, values, update=True, static=static)
        updated.update("a", moment, values, static=static)
        assert judged.predict("a", 4.0, known={"plan": 0.0}) == updated.predict("a", 4.0, known={"plan": 0.0})
    before = judged.predict("a", 4.0, known={"plan": 0.0})
    assert judged.anomalies("a", 3.5, {"plan": 0.0, "dose": 5.0}) == {}  # not an update
    assert judged.predict("a", 4.0, known={"plan": 0.0}) == before
    with pytest.raises(InputError, match="`static` must be a mapping"):
        judged.anomalies("a", 4.0, {"plan": 0.0, "y": 1.0}, static=5)


def forged_time(state):
    state.inputs.time[0] = state.last[0] - 1


def forged_category(code: float):
    def forge(state):
        state.inputs.static[0, 1] = code

    return forge


def forged_number(state):
    state.inputs.past[0, 0, 0] = np.inf


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (forged_category(99.0), "the categories of 'ward' in .* must be integers from 0 to 2"),
        (forged_category(-7.5), "the categories of 'ward' in .* must be integers from 0 to 2"),
        (forged_category(0.5), "the categories of 'ward' in .* must be integers from 0 to 2"),
        (forged_category(np.nan), "must hold finite numbers"),
        (forged_number, "must hold finite numbers"),
        (forged_time, "the last row of a series in .* must not lie before its last observation"),
    ],
)
def test_a_forged_state_is_refused(model, new, tmp_path, forge, message):
    stream = model.stream()
    stream.update_many(past(new))
    with torch.inference_mode():
        forge(stream.states.row(0))
    stream.save(tmp_path / "state")
    with pytest.raises(ValueError, match=rf"{message}\.$"):
        model.stream(state=tmp_path / "state")


@FAR
def test_saved_and_loaded(model, new, tmp_path):
    model.save(tmp_path / "model")
    again = Forecaster.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict(past(new), at=future(new)), model.predict(past(new), at=future(new)))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "Known at every time: `plan`, `dose`, `price`." in card and "Static: `age`, `ward`." in card
    known = future(clinic()).assign(t=lambda frame: frame["t"] + 12)
    grid = pd.DataFrame({"s": range(40)}).merge(pd.DataFrame({"t": [1.0, 2.0]}), how="cross").assign(plan=0.0)
    ends = clinic().dropna(subset=["y", "z"], how="all").groupby("s")["t"].max()
    grid["t"] += grid["s"].map(ends)
    frame = pd.concat([grid, known])
    said = again.forecast(horizon=2, every=1, known=frame)  # from the saved observations
    pd.testing.assert_frame_equal(said, model.forecast(horizon=2, every=1, known=frame))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["columns"]["static"] == {"age": None, "ward": WARDS}


@FAR
def test_pandas_polars_wide_and_long_tables_agree(table, model, new):
    said = model.predict(pl.from_pandas(past(new)), at=pl.from_pandas(future(new)))
    expected = model.predict(past(new), at=future(new))
    pd.testing.assert_frame_equal(said.to_pandas(), expected, check_dtype=False)
    inputs = ["s", "t", "plan", "dose", "price", "age", "ward"]

    def long(wide: pd.DataFrame) -> pd.DataFrame:
        return wide.melt(inputs, ["y", "z"], "what", "value")

    asked = Columns(id="s", time="t", known=check_known(ROLES["known"]), static=check_static(ROLES["static"]))
    wide, _, _ = read_training_table(table, replace(asked, values=("y", "z")))
    other = replace(asked, values=("value",), variable="what")
    series, clock, other = read_training_table(long(table), other)
    assert np.array_equal(series.per_time[KNOWN], wide.per_time[KNOWN], equal_nan=True)
    assert np.array_equal(series.per_series[STATIC], wide.per_series[STATIC])
    assert np.array_equal(series.values, wide.values) and np.array_equal(series.mask, wide.mask)
    wrong = long(past(new))
    wrong.loc[3, "plan"] = 8.0
    with pytest.raises(
        InputError, match=r"column 'plan' must have one value at a time, .* and 8 in series '0' at time"
    ):
        other.series(other.read(wrong), clock)


@FAR
def test_every_method_takes_inputs(table, model, new, tmp_path):
    at = future(new)
    parts = model.components(past(new), at=at).groupby(["s", "t", "variable"], sort=False)["mean"].sum()
    assert np.allclose(parts.to_numpy(), model.predict(past(new), at=at)["mean"])
    drawn = model.sample(4, past(new), at=at)
    assert len(drawn) == 4 * 2 * len(at)
    ends = past(new).dropna(subset=["y", "z"], how="all").groupby("s")["t"].max()
    steps = pd.DataFrame({"s": ends.index, "t": ends.to_numpy() + 1.0, "plan": 3.0})
    high = model.forecast(past(new), horizon=1, every=1, known=steps)
    low = model.forecast(past(new), horizon=1, every=1, known=steps.assign(plan=-3.0))
    difference = (high["mean"] - low["mean"]).groupby(high["variable"]).min()
    assert difference["y"] > 1
    assert len(model.sample(3, past(new), horizon=1, every=1, known=steps)) == 3 * len(high)
    assert model.components(past(new), horizon=1, every=1, known=steps)["s"].nunique() == 6
    gaps = new[["y", "z"]].isna().sum().sum()
    assert len(model.impute(new)) == gaps
    assert len(model.anomalies(new)) == 2 * len(new) - gaps
    test = model.backtest(new, horizon=5.0, cuts=2)
    assert test.scores(by=[]).query("model == 'model'")["rmse"].iloc[0] > 0
    assert model.view(new, out=tmp_path / "page.html").exists() and model._repr_html_()
    assert model.score(new) < 1


def test_a_backtest_gives_the_known_values_of_the_future(model, new):
    said = model.backtest(new, horizon=4.0, cuts=1).predictions
    row = said.iloc[0]
    observed = new[(new["s"] == row["s"]) & (new["t"] <= row["cut"])]
    times = said[(said["s"] == row["s"]) & (said["cut"] == row["cut"])]["t"].unique()
    at = new.loc[(new["s"] == row["s"]) & (new["t"] > row["cut"]), ["s", "t", "plan", "dose", "price"]]
    expected = model.predict(observed, at=at[at["t"].isin(times)])
    part = said[(said["s"] == row["s"]) & (said["cut"] == row["cut"])]
    both = part.merge(expected, on=["s", "t", "variable"])
    doses = at[~at["t"].isin(times)]["dose"].notna()
    if not doses.any():
        assert np.allclose(both["mean_x"], both["mean_y"], rtol=1e-4)
    assert len(both) == len(part)


def test_rows_between_the_requested_times_count(model, new):
    at = future(new).groupby("s").tail(1)
    between = at.assign(t=at["t"] - 0.01, dose=9.0)
    alone = model.predict(past(new), at=at)["mean"]
    horizon = pd.DataFrame({"s": range(6)})
    ends = past(new).dropna(subset=["y", "z"], how="all").groupby("s")["t"].max()
    steps = horizon.assign(t=ends.to_numpy() + 1.0, plan=0.0)
    more = pd.concat([steps, steps.assign(t=steps["t"] - 0.01, plan=np.nan, dose=9.0)])
    without = model.forecast(past(new), horizon=1, every=1, known=steps)
    with_dose = model.forecast(past(new), horizon=1, every=1, known=more)
    assert len(with_dose) == len(without) and (with_dose["mean"] != without["mean"]).any()
    assert len(alone) == 2 * len(at) and len(between)


def test_without_these_columns_nothing_is_needed(blind, table):
    assert blind.inputs_ is None and "inputs" not in blind.options_
    with pytest.raises(InputError, match=r"`known` must be left out: the model was fitted without known columns\."):
        blind.forecast(horizon=1, known=table)
    stream = blind.stream()
    with pytest.raises(InputError, match="fitted without"):
        stream.predict(0, 1.0, known={"plan": 1})
    with pytest.raises(InputError, match="fitted without static columns"):
        stream.update(0, 1.0, {"y": 1}, static={"age": 3})


def test_the_calendar_can_be_switched_off():
    days = pd.date_range("2024-01-01", periods=24).tolist() * 2
    frame = pd.DataFrame({"s": np.repeat([*"ab"], 24), "t": days, "y": np.random.default_rng(0).normal(size=48)})
    used = Forecaster("structural", progress=False).fit(frame, id="s", time="t")
    off = Forecaster("structural", calendar=False, progress=False).fit(frame, id="s", time="t")
    assert used.options_["season"] and used.options_["periods"]
    assert not off.options_["season"] and not off.options_["periods"]


# What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"known": ["weather"]}, r"the table must have the columns 'weather'; it has 's', 't', .*\."),
        ({"known": ["y"]}, r"`known` must not name a column that has another role, got 'y'\. Leave it out of one .*"),
        (
            {"known": ["plan"], "static": ["plan"]},
            r"`known` must not name a column that has another role, got 'plan'\..*",
        ),
        ({"static": ["t"]}, r"`static` must not name a column that has another role, got 't'\..*"),
        ({"known": ["ward"]}, r"column 'ward' must hold numbers, because it is known, got String\. Pass text as .*"),
        (
            {"known": {"plan": "first"}},
            r"`known` must have fills that are None, 'last' or a number from -1e\+30 to 1e\+30, got .*",
        ),
        ({"known": [3]}, r"`known` must be a list of names of columns, got \[3\]\."),
        ({"static": ["plan"]}, r"column 'plan' must have one value for each series, .* in series '0'\. Correct it\."),
        (
            {"known": ["dose"]},
            r"column 'dose' must have a value in every row, because it is known, got none in series '0' at time \S+ "
            r"Fill it, or give a fill: known=\{'dose': 'last'\}\.",
        ),
    ],
)
def test_wrong_roles_are_one_sentence(table, roles, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        Forecaster(progress=False).fit(table, **COLUMNS, **roles)


@pytest.mark.parametrize("options", [{"base": None}, {"model": "last-value"}, {"model": "structural"}])
def test_only_a_network_on_a_structural_model_takes_inputs(table, options):
    with pytest.raises(InputError, match=r"`known` must be left out, because this model cannot use it\. Use a network"):
        Forecaster(**{"model": "mlp", "epochs": 1, "progress": False, **options}).fit(table, **COLUMNS, **ROLES)


def test_another_network_takes_inputs(table, new):
    model = Forecaster("gru", options={"hidden_size": 4}, epochs=1, progress=False).fit(table, **COLUMNS, **ROLES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.predict(past(new), at=future(new).groupby("s").head(1))
    stream = model.stream()
    stream.update_many(past(new))
    row = future(new).iloc[0]
    said = stream.predict(row["s"], row["t"], known={n: row[n] for n in ("plan", "dose", "price")})
    assert said["y"]["mean"] == pytest.approx(expected["mean"].iloc[0], rel=1e-4)


@FAR
def test_wrong_known_values_are_one_sentence(model, new):
    def refused(message: str, call) -> None:
        with pytest.raises(InputError, match=f"^{message}$"):
            call()

    at = future(new)
    refused(
        r"`at` must have a value of every known column at every requested time, got no 'plan' in series '0' at time 50"
        r"\. Pass a frame with 's', 't', 'plan', 'dose', 'price' as `at`\.",
        lambda: model.predict(past(new), at=[50.0]),
    )
    refused(
        r"`at` must have the columns 'plan'; it has .*", lambda: model.predict(past(new), at=at.drop(columns="plan"))
    )
    short = at[at["t"] < 14]
    refused(
        r"`known` must have a value at every forecast time, but known values end before the horizon, got no 'plan' in "
        r"series '0', which ends at \S+, at time \S+\. Pass a frame with 's', 't', .* as `known`\.",
        lambda: model.forecast(past(new), horizon=100, every=50, known=short),
    )
    refused(r"`known` must .* known values end before the horizon, .*", lambda: model.forecast(past(new), horizon=100))
    endless = past(new).copy()
    endless.loc[endless.index[2], "dose"] = np.inf
    refused(
        r"column 'dose' must be at most 1e.30 in size, got inf in series '0' at time \S+ Correct it\.",
        lambda: model.impute(endless),
    )
    refused(r"`at` of 'plan' must hold numbers, .*", lambda: model.predict(past(new), at=at.assign(plan="much")))
    changed = past(new).copy()
    changed.loc[changed.index[1], "ward"] = "west"
    refused(
        r"column 'ward' must have one value for each series, because it is static, got 'north' and 'west' in series "
        r"'0'\. Correct it\.",
        lambda: model.impute(changed),
    )
    refused("the table must have the columns 'age'; .*", lambda: model.impute(new.drop(columns="age")))


def test_a_category_that_is_new_counts_as_missing(model, new):
    other, none = past(new).assign(ward="moon"), past(new).assign(ward=None)
    with pytest.warns(
        UserWarning, match="'ward' has 'moon', which the training table does not have. This counts as missing"
    ):
        said = model.impute(other)
    pd.testing.assert_frame_equal(said, model.impute(none))
    some = past(new).copy()
    some.loc[some.groupby("s").cumcount() > 0, ["ward", "age"]] = None
    pd.testing.assert_frame_equal(model.impute(some), model.impute(past(new)))  # one row has the value
    with pytest.warns(UserWarning, match="'ward' has 'moon'"):
        model.stream().update(1, 1.0, {"plan": 0, "ward": "moon"})


def test_wrong_values_of_a_stream_are_one_sentence(model):
    stream = model.stream()
    stream.update(1, 1.0, {"y": 1.0, "plan": 0.0, "ward": "north", "age": 40})
    with pytest.raises(
        InputError, match=r"`values` of 'plan' must have a value at every time, .* in series '1' at time 2"
    ):
        stream.update(1, 2.0, {"y": 1.0})
    with pytest.raises(InputError, match=r"`known` of 'plan' must have a value at every time"):
        stream.predict(1, 2.0)
    with pytest.raises(
        InputError, match=r"`known` must have known columns of the training table, got 'plam'\. Did you"
    ):
        stream.predict(1, 2.0, known={"plam": 1})
    with pytest.raises(InputError, match=r"column 'ward' must have one value .* 'north' and 'west' in series '1'"):
        stream.update(1, 2.0, {"y": 1.0, "plan": 0.0, "ward": "west"})
    with pytest.raises(InputError, match=r"`values` of 'plan' must be finite numbers, got inf in series '1' at time 2"):
        stream.update(1, 2.0, {"plan": float("inf")})
    with pytest.raises(InputError, match=r"`known` must be a mapping"):
        stream.predict(1, 2.0, known=[1])
    with pytest.raises(InputError, match="not lie before the last"):
        stream.predict(1, 0.5, known={"plan": 1})
    with pytest.raises(InputError, match="known values end before the horizon"):
        stream.predict_many([3.0])
    assert len(stream) == 1


def test_a_frame_of_known_values_that_contradicts_itself_or_the_table_is_refused(model, new):
    first, ahead = past(new), future(new)
    twice = pd.concat([ahead, ahead.iloc[:1].assign(plan=50.0)])
    with pytest.raises(InputError, match=r"`at` of 'plan' must have one value at a time.* and 50 in series '0'"):
        model.predict(first, at=twice)
    with pytest.raises(InputError, match=r"column 'age' must have one value for each series.* and 99 in series"):
        model.forecast(first, horizon=1.0, known=ahead.assign(age=99.0))
    with pytest.raises(InputError, match="`known` must have series of the table, got 'x0'"):
        model.forecast(first, horizon=1.0, known=ahead.assign(s="x" + ahead["s"].astype(str)))
    renamed = ahead.assign(s=ahead["s"].replace(0, 77))
    with (
        pytest.warns(UserWarning, match="`known` has series '77', which the table does not have, and nothing for"),
        pytest.raises(InputError, match="no 'plan' in series '0'"),
    ):
        model.forecast(first, horizon=1.0, known=renamed)
    for call in (model.sample, model.components):
        arguments = {"n": 2} if call == model.sample else {}
        with pytest.raises(InputError, match=r"`known` must be given with `horizon` only. Put the known values into"):
            call(table=first, at=ahead, known=ahead, **arguments)
    with pytest.raises(ValueError, match=r"`known` of 't' must hold numbers, as in the training table"):
        model.forecast(first, horizon=1.0, known=ahead.assign(t=pd.Timestamp("2024-01-01")))


@pytest.mark.parametrize("huge", [1e31, -np.inf])
def test_a_huge_known_or_static_number_is_refused_before_the_fit(table, huge):
    for name in ("plan", "age"):
        changed = table.assign(**{name: table[name].where(table.index > 0, huge)})
        with pytest.raises(InputError, match=rf"column '{name}' must be at most 1e.30 in size, got \S+ in ser"):
            Forecaster().fit(changed, **COLUMNS, **ROLES)
    for fill in (huge, True, 10**400):
        with pytest.raises(InputError, match=r"`known` must have fills that are None, 'last' or a number from"):
            check_known({"a": fill})


@pytest.mark.parametrize("change", ["inputs without roles", "features without inputs"])
def test_forged_inputs_are_refused(model, tmp_path, change):
    model.save(tmp_path / "m", history=False)
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config["columns"] |= {"known": {}, "static": {}}
    if change == "inputs without roles":
        config["inputs"] = {"center": [], "gap": 1.0, "shift": [], "scale": []}
        config["options"] |= {"inputs": 0, "later_inputs": 0}
    else:
        config["inputs"] = None
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"known (or|and) static columns"):
        Forecaster.load(tmp_path / "m")
