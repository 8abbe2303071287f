"""`Forecaster.view`: what the page says is what the other methods say."""

import base64
import dataclasses
import json
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cru import Forecaster
from cru.forecaster.series_view import find_long_gaps
from cru.forecaster.view_data import choose_horizon, collect
from cru.reporting.view_page import SETTINGS
from tests.forecaster.conftest import stations


def parts(code: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(code), kind)


def times_of(data: dict, code: str) -> pd.DatetimeIndex:
    since = data["first"] + data["tick"] * parts(code, "<u4")
    ms = data["clock"]["origin"] + data["clock"]["unit"] * since
    return pd.to_datetime(ms, unit="ms").round("s")


def curves_of(data: dict, one: dict) -> np.ndarray:
    curves = one["curves"]
    return (curves["low"] + curves["step"] * parts(curves["code"], "<u2").astype(float)).reshape(
        1 + 2 * len(data["levels"]), -1
    )


@pytest.mark.parametrize("which", ["repeater", "trained", "default"])
def test_the_curves_are_those_of_predict(which, table, request):
    model = request.getfixturevalue(which)
    data = collect(model, table, horizon="9D", level=[50, 80])
    assert data["levels"] == [80, 50] and data["names"] == ["high", "low"]
    series = data["series"][3]
    details = series["data"]
    at = times_of(data, details["points"])
    assert (at[-1] - table["date"][table["station"] == series["id"]].max()).days == 9
    said = model.predict(table[table["station"] == series["id"]], at=list(at), level=[50, 80])
    for one in details["variables"]:
        own = said[said["variable"] == data["names"][one["variable"]]]
        expected = own[["mean", "lo-80", "hi-80", "lo-50", "hi-50"]].to_numpy().T
        np.testing.assert_allclose(curves_of(data, one), expected, atol=2e-3 * np.ptp(expected))


def test_the_observations_are_those_of_the_table(repeater, table):
    data = collect(repeater)
    assert data["observations"] == table[["high", "low"]].notna().sum().sum()
    for number, (name, own) in enumerate(table.groupby("station")):
        series = data["series"][number]
        assert series["id"] == name and series["count"] == own[["high", "low"]].notna().sum().sum()
        assert series["gap"] == own["date"].sort_values().diff().max() / pd.Timedelta("1D")
        times = times_of(data, series["data"]["times"])
        for one in series["data"]["variables"]:
            seen = own.sort_values("date").dropna(subset=[data["names"][one["variable"]]])
            at = np.arange(len(times)) if one["at"] is None else parts(one["at"], "<u2")
            assert (times[at] == seen["date"].to_numpy()).all()
            values = parts(one["values"]["code"], "<f4")
            np.testing.assert_allclose(values, seen[data["names"][one["variable"]]], rtol=1e-6)


def test_errors_of_series(table):
    """The series that the model cannot know has the worst error, and is the most surprising one."""
    wild = stations(30, 40, seed=3)
    chosen = wild["station"] == "s07"
    wild.loc[chosen, "high"] = np.random.default_rng(0).normal(10, 300, chosen.sum())
    model = Forecaster("structural", progress=False).fit(stations(30, 40, seed=4), id="station", time="date")
    data = collect(model, wild)
    for measure in ("error", "surprise", "anomalies"):
        assert max(data["series"], key=lambda one: one[measure])["id"] == "s07"


@pytest.mark.parametrize("which", ["repeater", "default"])
def test_anomalies_are_those_of_the_forecaster(which, table, request):
    model = request.getfixturevalue(which)
    wild = table.copy()
    wild.loc[[5, 40, 41, 200], "high"] += 80
    found = model.anomalies(wild)
    found = found[found["anomaly"]]
    data = collect(model, wild)
    shown = [
        (series["id"], data["names"][one["variable"]], mean, p)
        for series in data["series"]
        for one in series["data"]["variables"]
        for _, mean, p in one["anomalies"]
    ]
    assert len(found) >= 4 and len(shown) == len(found) == sum(one["anomalies"] for one in data["series"])
    expected = found[["station", "variable", "mean", "p_value"]].sort_values(["station", "variable"], kind="stable")
    for mine, theirs in zip(shown, expected.itertuples(index=False), strict=True):
        assert mine[:2] == theirs[:2] and mine[2:] == pytest.approx(theirs[2:], rel=0.01)
    bits = -np.log10(model.anomalies(wild).set_index("station")["p_value"]).groupby("station").mean()
    assert [one["surprise"] for one in data["series"]] == pytest.approx(bits.tolist(), rel=0.01)


def test_components_are_those_of_the_forecaster(default, table):
    data = collect(default, table)
    series = data["series"][2]
    at = times_of(data, series["data"]["points"])
    found = default.components(table[table["station"] == series["id"]], at=list(at))
    for one in series["data"]["variables"]:
        own = found[found["variable"] == data["names"][one["variable"]]]
        assert {"slow", "fast"} <= {part["name"] for part in one["components"]} <= set(own["component"])
        size = np.ptp(curves_of(data, one)[0])
        for part in one["components"]:
            mean = own[own["component"] == part["name"]]["mean"]
            shown = part["low"] + part["step"] * parts(part["code"], "<u2").astype(float)
            np.testing.assert_allclose(shown, mean, atol=3e-3 * size)


def test_a_model_without_components_and_anomalies(trained, table):
    data = collect(trained, table)
    assert all(one["components"] == [] for series in data["series"] for one in series["data"]["variables"])
    linear = Forecaster("linear", progress=False).fit(table, id="station", time="date")
    assert all(one["surprise"] is None and one["anomalies"] is None for one in collect(linear)["series"])


def test_the_scores_are_those_of_the_model(default):
    data = collect(default)
    assert data["scores"]["coverage"] == default.scores_["coverage"]
    assert data["scores"]["r2"] == pytest.approx(default.scores_["r2"], rel=1e-4)
    assert [row["model"] for row in data["scores"]["table"]] == [row["model"] for row in default.scores_["table"]]
    facts = dict(data["training"])
    assert facts["series"] == "60" and "structural model, corrected by mlp" in facts["model"]


def test_coverage_by_level_and_lead_time(default):
    rows = pd.DataFrame(default.scores_["coverage"])
    whole = rows[rows["lead"] == "all"].set_index("level")["coverage"]
    assert whole.is_monotonic_increasing and np.abs(whole - whole.index / 100).max() < 0.1
    assert whole[90] == default.scores_["coverage90"] and whole[50] == default.scores_["coverage50"]
    each = rows[(rows["level"] == 90) & (rows["lead"] != "all")]
    average = (each["coverage"] * each["count"]).sum() / each["count"].sum()
    assert len(each) > 2 and average == pytest.approx(whole[90], abs=0.01)


def test_long_gaps():
    times = np.array([0.0, 1, 2, 3, 20, 21, 22, 40])
    assert find_long_gaps(times, 1.0).tolist() == [[3, 20], [22, 40]]
    assert find_long_gaps(times, 4.0).tolist() == []  # usual gaps of the table
    assert find_long_gaps(times[::4], 1.0).tolist() == []  # usual gaps of the variable
    assert find_long_gaps(times[:1], 1.0).shape == (0, 2)


def test_the_page(repeater, table, tmp_path):
    path = repeater.view(out=tmp_path / "new" / "page.html")
    text = path.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert len(data["series"]) == 24 and data["title"] == "24 series: high, low" and not data["own_table"]
    table.to_csv(tmp_path / "observations.csv", index=False)
    repeater.view(tmp_path / "observations.csv", out=str(path), horizon="3D")
    data = json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)[1])
    assert data["title"] == "observations.csv" and data["own_table"] and data["horizon"] == 3


def test_other_tables(repeater, table):
    assert collect(repeater, pl.from_pandas(table))["observations"] == collect(repeater, table)["observations"]
    hollow = table.copy()
    hollow.loc[hollow["station"] == "s03", ["high", "low"]] = np.nan
    hollow.loc[hollow["station"] == "s04", "low"] = np.nan
    series = {one["id"]: one for one in collect(repeater, hollow)["series"]}
    assert series["s03"]["data"] is None and series["s03"]["count"] == 0 and series["s03"]["first"] is None
    assert [one["variable"] for one in series["s04"]["data"]["variables"]] == [0]


def test_one_series_with_numbers_as_times():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"hour": np.cumsum(rng.exponential(1, 80)), "load": rng.normal(size=80)})
    data = collect(Forecaster("last-value", progress=False).fit(frame, time="hour"))
    assert data["clock"] == {"kind": "number"} and len(data["series"]) == 1 and data["title"] == "One series: load"


def test_what_cannot_be_shown(repeater, table, tmp_path):
    with pytest.raises(ValueError, match=r"`out` must end in .html, got .*page.pdf"):
        repeater.view(out=tmp_path / "page.pdf")
    with pytest.raises(ValueError, match="`horizon` must be"):
        repeater.view(out=tmp_path / "page.html", horizon=3)
    with pytest.raises(ValueError, match="`level` must be per cent"):
        repeater.view(out=tmp_path / "page.html", level=200)
    with pytest.raises(ValueError, match="`table` must hold at least one observation"):
        repeater.view(table.assign(high=np.nan, low=np.nan), out=tmp_path / "page.html")
    with pytest.raises(ValueError, match="is not fitted yet"):
        Forecaster().view(out=tmp_path / "page.html")
    repeater.save(tmp_path / "model", history=False)
    loaded = Forecaster.load(tmp_path / "model")
    with pytest.raises(ValueError, match="`table` must be given"):
        loaded.view(out=tmp_path / "page.html")
    assert dict(collect(loaded, table)["training"])["training table"] == "not saved with the model"


def test_the_default_horizon(repeater, table):
    series = repeater._series(None)
    spans = table.groupby("station")["date"].agg(lambda dates: (dates.max() - dates.min()).days)
    assert choose_horizon(repeater, series) == pytest.approx(max(spans.median() / 10, 5 * repeater.gap_), rel=0.06)


def test_a_large_table_is_thinned_out_and_says_so(repeater, table, monkeypatch):
    assert len(collect(repeater)["notes"]) == 1
    small = dataclasses.replace(SETTINGS, series_bytes=0, map_series=20, curve_points=(8, 8))
    monkeypatch.setattr("cru.forecaster.view_data.SETTINGS", small)
    monkeypatch.setattr("cru.reporting.view_page.SETTINGS", small)
    data = collect(repeater)
    assert len(data["series"]) == 20 and any("20 of 24 series" in note for note in data["notes"])
    assert any("at most 24 observations" in note for note in data["notes"])
    (kept,) = [one for one in data["series"] if one["data"]]
    worst = {max(data["series"], key=lambda one: one[measure])["id"] for measure in ("gap", "error", "surprise")}
    assert kept["id"] in worst and any("curves of 1 of 24 series" in note for note in data["notes"])
