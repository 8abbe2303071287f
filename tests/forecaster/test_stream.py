"""Streams give the numbers of the batch call, one observation at a time, for any number of series."""

import copy
from functools import cache

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
from tests.forecaster.conftest import FAR, short_fits

STREAMING = ["cru", "f-cru", "rkn", "rkn-dt", "gru", "gru-dt", "ode-rnn", "gru-ode-b", "paired", "mlp", "structural"]
NUMBERS = ["mean", "std", "lo-90", "hi-90"]


def observations(count: int = 30, steps: int = 12, seed: int = 0) -> pd.DataFrame:
    """Series a0, a1, ... of two variables at times of their own, a third of the values missing."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.uniform(0, 20, (count, steps))).ravel()
    frame = pd.DataFrame({"name": np.repeat([f"a{k}" for k in range(count)], steps), "day": day})
    frame["warm"] = 20 + 5 * np.sin(day) + rng.standard_normal(len(day))
    frame["wet"] = 300 + 100 * np.cos(day)
    for column in ("warm", "wet"):
        frame.loc[rng.random(len(day)) < 1 / 3, column] = np.nan
    return frame


def fitted(model: str = "cru", seed: int = 0) -> Forecaster:
    """A copy of a forecaster that all tests share."""
    return copy.deepcopy(_fitted(model, seed))


@cache
def _fitted(model: str, seed: int) -> Forecaster:
    sizes = {"paired": {"layers": 1, "pairs": 4, "width": 8}, "structural": {}}
    forecaster = Forecaster(model, options=sizes.get(model, {"hidden_size": 6}), epochs=1, seed=seed, progress=False)
    with short_fits():
        return forecaster.fit(observations(), id="name", time="day")


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    return fitted()


def told(stream, frame: pd.DataFrame):
    """One row at a time, in the order of the clock, so that series take turns."""
    for row in frame.sort_values("day").itertuples():
        assert stream.update(row.name, row.day, {"warm": row.warm, "wet": row.wet})
    return stream


def as_frame(stream, expected: pd.DataFrame) -> pd.DataFrame:
    """The stream's own answers to the questions of a frame."""
    rows = [stream.predict(row.name, row.day)[row.variable] for row in expected.itertuples()]
    return pd.DataFrame(rows, index=expected.index)


def close(found: pd.DataFrame, expected: pd.DataFrame, tolerance: float) -> None:
    """In units of the deviation of each value."""
    difference = (found[NUMBERS] - expected[NUMBERS]).abs().div(expected["std"], axis=0)
    assert len(found) == len(expected) > 0
    assert difference.max().max() < tolerance


@FAR
@pytest.mark.parametrize("name", STREAMING)
def test_the_numbers_of_the_batch_call(name: str) -> None:
    forecaster, table = fitted(name), observations(4, seed=1)
    forecaster.model_.double()
    stream = told(forecaster.stream(), table)
    for at in (20.0, 27.5, 400.0):
        expected = forecaster.predict(table, at=[at])
        close(as_frame(stream, expected), expected, 1e-9)
    longest = forecaster.model_.spec.longest_gap or 10.0
    pause = pd.DataFrame({"name": "a1", "day": 20 + longest * np.arange(0.6, 3, 0.6)})  # rows at which nothing is read
    paused = pd.concat([table, pause, pd.DataFrame({"name": ["a1"], "day": 30 + 3 * longest, "warm": 21.0})])
    stream, at = told(forecaster.stream(), paused), [35 + 3 * longest]
    expected = forecaster.predict(paused, at={"a1": at})
    close(as_frame(stream, expected), expected, 1e-9)
    many = forecaster.stream()
    many.update_many(paused)
    close(as_frame(many, expected), expected, 1e-9)
    stream, table = forecaster.stream(), table[table.name == "a0"].sort_values("day")
    for number, row in enumerate(table.itertuples(), 1):
        stream.update(row.name, row.day, {"warm": row.warm, "wet": row.wet})
        expected = forecaster.predict(table[:number], at=[row.day + 0.1])
        close(as_frame(stream, expected), expected, 1e-9)


def test_in_float32_too(forecaster) -> None:
    table = observations(4, seed=2)
    expected = forecaster.predict(table, at=[21.0])
    close(as_frame(told(forecaster.stream(), table), expected), expected, 1e-5)


@FAR
def test_a_table_at_once_or_in_parts_gives_the_same(forecaster) -> None:
    table, model = observations(70, seed=3), copy.deepcopy(forecaster)
    model.model_.double()
    expected = model.predict(table, at=[20.0, 22.0]).sort_values(["name", "day", "variable"], ignore_index=True)
    whole, parts = model.stream(), model.stream()
    assert whole.update_many(table) == len(table)
    assert parts.update_many(table[(table.day < 8) & (table.name < "a5")]) < len(table)
    parts.update_many(table[(table.day >= 8) | (table.name >= "a5")])
    for stream in (whole, parts):
        assert len(stream) == 70 and "a69" in stream and "a70" not in stream
        found = stream.predict_many([20.0, 22.0]).sort_values(["name", "day", "variable"], ignore_index=True)
        assert found[["name", "day", "variable"]].equals(expected[["name", "day", "variable"]])
        close(found, expected, 1e-9)
    assert parts.predict_many([30.0], ids=["a3", "a1"])["name"].tolist() == ["a3", "a3", "a1", "a1"]


def test_a_new_series_begins_with_what_is_known_of_all(forecaster) -> None:
    expected = forecaster.predict(observations(1), at={"new": [3.0]})
    close(as_frame(forecaster.stream(), expected), expected, 1e-5)


def test_a_series_begins_with_its_first_value(forecaster) -> None:
    stream, many = forecaster.stream(), forecaster.stream()
    assert stream.update("a", -300.0, {}) and stream.update("a", -200.0, {"warm": None}) and len(stream) == 0
    assert many.update_many(pd.DataFrame({"name": "a", "day": [-300.0, -200.0], "warm": np.nan, "wet": np.nan})) == 2
    assert len(many) == 0
    for one in (stream, many):
        one.update("a", 1.0, {"warm": 20.0})
    alone = forecaster.stream()
    alone.update("a", 1.0, {"warm": 20.0})
    assert stream.predict("a", 2.0) == many.predict("a", 2.0) == alone.predict("a", 2.0)


def test_yes_and_no_are_one_and_zero_as_in_a_table(forecaster) -> None:
    streams = [forecaster.stream() for _ in range(3)]
    for stream, yes in zip(streams, (1, True, np.True_), strict=True):
        stream.update("a", 1.0, {"warm": yes})
    assert streams[0].predict("a", 2.0) == streams[1].predict("a", 2.0) == streams[2].predict("a", 2.0)


def test_a_late_observation_is_refused_or_dropped(forecaster) -> None:
    stream = forecaster.stream()
    stream.update("a", 5.0, {"warm": 20.0})
    before = stream.predict("a", 6.0)
    with pytest.raises(ValueError, match=r"`time` must not lie before the last observation of 'a', 5.0, got 4.0. Sort"):
        stream.update("a", 4.0, {"warm": 21.0})
    with pytest.raises(ValueError, match=r"before the last observation of 'a', 5.0, got 4.5. Sort"):
        stream.update_many(pd.DataFrame({"name": ["a", "b"], "day": [4.5, 1.0], "warm": 1.0, "wet": 1.0}))
    assert stream.predict("a", 6.0) == before and len(stream) == 1  # nothing was half done
    lenient = forecaster.stream(late="drop")
    lenient.update("a", 5.0, {"warm": 20.0})
    assert lenient.update("a", 4.0, {"warm": 99.0}) is False
    table = pd.DataFrame({"name": ["a", "a", "b"], "day": [1.0, 2.0, 1.0], "warm": 1.0, "wet": 1.0})
    assert lenient.update_many(table) == 1
    assert lenient.predict("a", 6.0) == before and len(lenient) == 2
    with pytest.raises(ValueError, match="`late` must be 'refuse' or 'drop', got 'sort'"):
        forecaster.stream(late="sort")


def test_two_observations_at_one_time_are_both_taken(forecaster) -> None:
    """One device after another: for a filter a gap of nothing is a gap like others."""
    stream = forecaster.stream()
    stream.update("a", 5.0, {"warm": 20.0})
    before = stream.predict("a", 5.0)
    assert stream.update("a", 5.0, {"wet": 400.0})
    assert stream.predict("a", 5.0)["wet"]["mean"] != before["wet"]["mean"]


def test_a_filter_does_not_look_back(forecaster) -> None:
    stream = told(forecaster.stream(), observations(3))
    for ask in (lambda: stream.predict("a1", 0.0), lambda: stream.predict_many([0.0, 30.0])):
        with pytest.raises(
            ValueError, match=r"must not lie before the last observation of 'a\d', .* pass the complete table"
        ):
            ask()


def test_memory_is_constant_in_time_and_small_for_each_series(forecaster) -> None:
    stream = forecaster.stream()
    stream.update("a", 0.0, {"warm": 20.0})
    before = [tuple(tensor.shape) for tensor in stream.states.tensors]
    for step in range(200):
        stream.update("a", step / 10, {"warm": 20.0, "wet": float("nan")})
    assert [tuple(tensor.shape) for tensor in stream.states.tensors] == before
    stream.update_many(observations(3000, 2))
    size = sum(tensor.numel() * tensor.element_size() for tensor in stream.states.tensors)
    assert 2950 < len(stream) <= 3001 and size < 2 * 3001 * 400  # bytes


def test_saved_and_restored(forecaster, tmp_path) -> None:
    stream = told(forecaster.stream(), observations(5))
    stream.save(tmp_path / "ward.safetensors")
    forecaster.save(tmp_path / "model")
    again = Forecaster.load(tmp_path / "model").stream(state=tmp_path / "ward.safetensors")
    for name in ("a0", "a4"):
        assert again.predict(name, 25.0) == stream.predict(name, 25.0)
    for live in (stream, again):
        live.update("a2", 26.0, {"warm": 30.0})
        live.update("fresh", 1.0, {"warm": 30.0})
    assert again.predict("a2", 27.0) == stream.predict("a2", 27.0)
    assert again.names == stream.names


def test_a_state_that_does_not_fit_is_refused(forecaster, tmp_path) -> None:
    path = tmp_path / "ward.safetensors"
    told(forecaster.stream(), observations(2)).save(path)
    with pytest.raises(ValueError, match="holds the state of another model"):
        fitted(seed=1).stream(state=path)
    forecaster.save(tmp_path / "model")
    with pytest.raises(ValueError, match="must hold the state of a stream"):
        forecaster.stream(state=tmp_path / "model" / next((tmp_path / "model").glob("model-*")).name)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="truncated"):
        forecaster.stream(state=path)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        forecaster.stream(state=tmp_path / "nowhere")


def test_a_series_that_has_ended_can_be_forgotten(forecaster) -> None:
    table = observations(5)
    stream, others = told(forecaster.stream(), table), told(forecaster.stream(), table[table.name != "a1"])
    stream.forget("a1")
    assert len(stream) == 4 and "a1" not in stream
    for name in ("a0", "a2", "a3", "a4"):
        assert stream.predict(name, 25.0) == others.predict(name, 25.0)
    stream.update("a1", 0.0, {"warm": 20.0})  # it begins anew
    stream.forget("a1")
    with pytest.raises(ValueError, match=r"`id` must be a series of this stream, got 'a1'\. There are a0"):
        stream.forget("a1")


def test_values_that_make_no_sense_are_refused_and_change_nothing(forecaster) -> None:
    stream = told(forecaster.stream(), observations(1))
    before = stream.predict("a0", 25.0)
    for values, said in (
        ({"warmth": 1.0}, "`values` must be variables of the training table, got 'warmth'. Did you mean 'warm'\\?"),
        (
            {"warm": float("inf")},
            r"`values` must be numbers near those of the training table, or None \(null\) for missing, got 'warm': inf",
        ),
        ({"warm": 1e30}, "numbers near those of the training table"),
        ({"warm": "20"}, "numbers near those of the training table"),
    ):
        with pytest.raises(ValueError, match=said):
            stream.update("a0", 24.0, values)
    with pytest.raises(ValueError, match="`time` must be numbers"):
        stream.update("a0", "2024-01-01", {"warm": 20.0})
    with pytest.raises(ValueError, match="`level` must be per cent"):
        stream.predict("a0", 25.0, level=0.9)
    with pytest.raises(ValueError, match="`ids` must name at least one series of the stream, got none"):
        forecaster.stream().predict_many([25.0])
    with pytest.raises(ValueError, match="`at` must hold at least one time, got none"):
        stream.predict_many([])
    assert stream.predict("a0", 25.0) == before


def test_an_observation_without_values_is_no_observation(forecaster) -> None:
    stream, silent = told(forecaster.stream(), observations(1)), told(forecaster.stream(), observations(1))
    silent.update("a0", 21.0, {"warm": None})
    found, expected = silent.predict("a0", 25.0)["warm"], stream.predict("a0", 25.0)["warm"]
    assert found == expected
    forecaster_says = forecaster.predict(
        pd.concat([observations(1), pd.DataFrame({"name": ["a0"], "day": [21.0]})]), at=[25.0]
    ).set_index("variable")
    assert found["lo-90"] == pytest.approx(forecaster_says.loc["warm", "lo-90"], rel=1e-5)


@pytest.mark.parametrize("name", ["linear", "latent-ode", "gru-d", "mean"])
def test_a_model_that_cannot_stream_says_so(name: str, short_fit) -> None:
    options = {"hidden_size": 4} if name in ("latent-ode", "gru-d") else None
    forecaster = Forecaster(name, options=options, epochs=1, progress=False).fit(observations(), id="name", time="day")
    with pytest.raises(ValueError, match=r"does not support streaming: it .* Use 'cru'"):
        forecaster.stream()


@FAR
def test_dates_and_a_table_of_one_series(short_fit) -> None:
    table = observations(1, 60).drop(columns="name")
    table["day"] = pd.Timestamp("2024-03-01", tz="UTC") + pd.to_timedelta(table["day"], unit="D").dt.round("s")
    forecaster = Forecaster("cru", options={"hidden_size": 4}, epochs=1, progress=False).fit(table, time="day")
    stream = forecaster.stream()
    for row in table.itertuples():
        stream.update(None, row.day, {"warm": row.warm, "wet": row.wet})
    expected = forecaster.predict(table, at=["2024-03-25T12:00Z"]).set_index("variable")
    found = stream.predict(None, "2024-03-25T12:00+00:00")
    assert found["warm"]["mean"] == pytest.approx(expected.loc["warm", "mean"], rel=1e-5)
    with pytest.raises(ValueError, match="last observation of '0', 2024-03-"):
        stream.update(None, pd.Timestamp("2024-03-02", tz="UTC"), {"warm": 20.0})


@pytest.mark.parametrize("id", [None, True, float("nan"), [1, 2], {"a": 1}])
def test_what_is_no_name_of_a_series(forecaster, id) -> None:  # noqa: A002
    stream = forecaster.stream()
    for call in (lambda: stream.update(id, 1.0, {}), lambda: stream.predict(id, 1.0)):
        with pytest.raises(ValueError, match=r"`id` must be the name of a series, text or a number, got"):
            call()
    assert len(stream) == 0


def test_values_that_are_no_mapping(forecaster) -> None:
    with pytest.raises(ValueError, match=r"`values` must be a mapping from variables to numbers, got \[1, 2\]"):
        forecaster.stream().update("a", 1.0, [1, 2])


def test_a_model_without_ids_has_one_series(short_fit) -> None:
    table = observations(1, 40).drop(columns="name")
    forecaster = Forecaster("cru", options={"hidden_size": 4}, epochs=1, progress=False).fit(table, time="day")
    stream = forecaster.stream()
    assert stream.update(None, 1.0, {"warm": 20}) and stream.update("0", 2.0, {"warm": 20})
    for call in (lambda: stream.update("b", 3.0, {"warm": 1}), lambda: stream.predict("b", 3.0)):
        with pytest.raises(
            ValueError,
            match=r"`id` must be None, because the model was fitted to one series without ids, got 'b'",
        ):
            call()
    assert len(stream) == 1 and "b" not in stream


def test_a_variable_on_a_logarithmic_scale_streams_like_a_table() -> None:
    rng = np.random.default_rng(0)
    walks = np.exp(0.2 * rng.standard_normal((40, 30)).cumsum(1) + rng.normal(0, 0.5, (40, 1)))
    frame = pd.DataFrame({"name": np.repeat([f"a{k}" for k in range(40)], 30), "day": np.tile(np.arange(30.0), 40)})
    frame["flow"] = walks.ravel()
    forecaster = Forecaster("structural", progress=False).fit(frame, id="name", time="day")
    assert forecaster.scaler_.is_log.all()
    single, whole = forecaster.stream(), forecaster.stream()
    some = frame[frame["name"].isin(["a0", "a1"])]
    for row in some.itertuples():
        single.update(row.name, row.day, {"flow": row.flow})
    whole.update_many(some)
    for name in ("a0", "a1"):
        one, other = (stream.predict(name, 31.0)["flow"] for stream in (single, whole))
        assert one == pytest.approx(other, rel=1e-5)
