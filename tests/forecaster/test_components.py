"""Components: they add up to the prediction, and each is the posterior of a Gaussian process."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from cru import Forecaster
from cru.forecaster.clock import Clock
from cru.forecaster.components import season_name, time_constants
from tests.forecaster.conftest import FAR, stations

KEYS = ["station", "date", "variable"]


def hourly(count: int = 3, hours: int = 24 * 6, *, seed: int = 0) -> pd.DataFrame:
    """A daily wave, a wander, and a skewed variable whose logarithm is such a sum; a tenth of the rows is missing."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(count):
        date = pd.date_range("2024-01-01", periods=hours, freq="h")
        wave = np.sin(2 * np.pi * np.arange(hours) / 24 + 0.3 * number)
        walk = np.cumsum(rng.normal(0, 0.15, hours))
        part = pd.DataFrame({"station": f"s{number}", "date": date, "warm": 20 + 3 * wave + 2 * walk})
        part["dust"] = np.exp(1.5 * wave + walk + rng.normal(0, 0.05, hours))
        part["fixed"] = 7.0
        parts.append(part[rng.random(hours) < 0.9])
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def skewed() -> Forecaster:
    model = Forecaster("structural", progress=False).fit(hourly(), id="station", time="date")
    assert model.scaler_.is_log.tolist() == [False, True, False]
    return model


def total(found: pd.DataFrame) -> pd.Series:
    return found.groupby(KEYS)["mean"].sum()


def apart(model: Forecaster, found: pd.DataFrame, said: pd.DataFrame) -> float:
    """Largest difference between the sums and the predictions, in standard deviations of the variables."""
    expected = said.set_index(KEYS)["mean"]
    scale = expected.groupby("variable").transform("std").fillna(1.0).clip(lower=1e-9)
    difference = (total(found) - expected.reindex(total(found).index)).abs() / scale
    assert len(expected) == len(total(found)) > 0
    return float(difference.max())


@FAR
def test_they_add_up_to_the_predictions_of_the_default(default) -> None:
    table = stations(4, 25, seed=5)
    found = default.components(table)
    assert found.columns.tolist() == [*KEYS, "component", "mean", "std"]
    assert len(found) == len(table) * 2 * found["component"].nunique()
    assert np.isfinite(found[["mean", "std"]]).all().all() and (found["std"] >= 0).all()
    assert apart(default, found, default.predict(table, at=table[["station", "date"]])) < 1e-6
    at = ["2024-01-20", "2024-06-01"]
    assert apart(default, default.components(table, at=at), default.predict(table, at=at)) < 1e-6
    ahead = {"horizon": "9D", "every": "3D"}
    assert apart(default, default.components(table, **ahead), default.forecast(table, **ahead)) < 1e-6


@FAR
def test_they_add_up_on_a_logarithmic_scale_and_for_a_constant(skewed) -> None:
    table = hourly(2, 50, seed=3)
    found = skewed.components(table)
    assert apart(skewed, found, skewed.predict(table, at=table[["station", "date"]])) < 1e-6
    assert apart(skewed, skewed.components(horizon="2D"), skewed.forecast(horizon="2D")) < 1e-6
    assert skewed.components().equals(skewed.components(hourly()))  # the training table
    fixed = found[found["variable"] == "fixed"].set_index("component")
    assert (fixed.loc["level", "mean"] == 7).all() and not fixed.drop("level")["mean"].any() and not fixed["std"].any()


def test_a_logarithm_is_divided_in_proportion(skewed) -> None:
    """With f = exp: the level is f(level), and each other component has its share of f(sum) - f(level)."""
    table = hourly(1, 50, seed=3)
    found = skewed.components(table)
    dust = found[found["variable"] == "dust"].pivot(index="date", columns="component", values="mean")
    deviation = found[found["variable"] == "dust"].pivot(index="date", columns="component", values="std")
    series = skewed._series(table).scaled_by(skewed.scaler_)
    layer = skewed.model_.layer
    values, times = torch.from_numpy(series.values).float()[None], torch.from_numpy(series.times)[None]
    with torch.no_grad():
        names, mean, var = layer.components(values, times, torch.from_numpy(series.mask)[None])
    mean, var = mean[0, :, 1].double().numpy(), var[0, :, 1].double().numpy()  # on the scale of the logarithm
    shift, scale, unit = (float(part[1]) for part in vars(skewed.scaler_).values())
    level, total = mean[:, 0], mean.sum(1)
    change = unit * (np.exp(shift + scale * total) - np.exp(shift + scale * level))
    assert names[-1] == "seasonal mean" and np.abs(total - level).min() > 1e-3
    share = mean[:, -1] / (total - level)
    np.testing.assert_allclose(dust["level"], unit * np.expm1(shift + scale * level), rtol=1e-4)
    np.testing.assert_allclose(dust["seasonal mean"], change * share, rtol=1e-3, atol=1e-4)
    fast = [k for k, name in enumerate(names) if name.startswith("ou")]
    fast = fast[int(layer.log_rate[1, : len(fast)].argmax())]
    np.testing.assert_allclose(dust["fast"], change * mean[:, fast] / (total - level), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        deviation["fast"], change * np.sqrt(var[:, fast]) / (total - level), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", ["structural-filter", "gru-dt"])
def test_a_model_that_runs_forward_has_components_of_the_past(name: str) -> None:
    table = stations(30, 12, seed=2)
    model = Forecaster(name, epochs=1, progress=False).fit(table, id="station", time="date")
    found = model.components(table)
    assert apart(model, found, model.predict(table, at=table[["station", "date"]])) < 1e-6
    some = table[table["station"] == "s00"].sort_values("date")
    whole, part = model.components(some), model.components(some[:5])
    pd.testing.assert_frame_equal(whole[: len(part)], part)  # later observations change nothing


def posterior(model: Forecaster, table: pd.DataFrame, at: np.ndarray, chosen: list[int]) -> tuple[np.ndarray, ...]:
    """Mean and standard deviation of a sum of coefficients of "warm", by the dense kernel, in the user's units."""
    layer, clock = model.model_.layer, model.clock_
    rate, var = (field[0].double().numpy() for field in layer.hyperparameters[:2])
    noise = float(layer.hyperparameters.noise[0])
    flat = 1 + len(layer.time_constants)

    def kernel(s: np.ndarray, t: np.ndarray, coefficients) -> np.ndarray:
        lag, found = s[:, None] - t, 0.0
        for d in coefficients:
            # half of the kernel of an oscillator for each of its two coefficients
            wave = 1.0 if d < flat else 0.5 * np.cos(2 * np.pi * lag / layer.periods[(d - flat) // 2])
            found = found + var[d] * np.exp(-rate[d] * np.abs(lag)) * wave
        return found

    t = clock.numbers(list(table["date"]))

    def season(s: np.ndarray) -> np.ndarray:
        phase = 2 * np.pi * s[:, None] / np.array(layer.season_periods)
        waves = np.stack([np.cos(phase), np.sin(phase)], -1).reshape(len(s), -1)
        return waves @ layer.season[0].double().numpy()

    y = (table["warm"].to_numpy() - model.scaler_.shift[0]) / model.scaler_.scale[0] - season(t)
    every = range(len(var))
    gram = kernel(t, t, every) + noise * np.eye(len(t))
    cross = kernel(at, t, chosen)
    mean = cross @ np.linalg.solve(gram, y)
    variance = np.diag(kernel(at, at, chosen) - cross @ np.linalg.solve(gram, cross.T))
    return mean * model.scaler_.scale[0], np.sqrt(variance) * model.scaler_.scale[0], season(at)


def test_each_is_the_posterior_of_a_gaussian_process() -> None:
    """The pair of coefficients of an oscillator has the kernel var · exp(-rate · lag) · cos(2π lag / period)."""
    model = Forecaster("structural", progress=False).fit(
        hourly()[["station", "date", "warm"]], id="station", time="date"
    )
    model.model_.double()
    table = hourly(1, 30, seed=4)[["station", "date", "warm"]]
    dates = pd.to_datetime(["2024-01-01T03:30", "2024-01-01T20:00", "2024-01-03T01:00"])
    at = model.clock_.numbers(list(dates))
    found = model.components(table, at=dates).set_index("component")
    layer = model.model_.layer
    count = len(layer.time_constants)
    rate = layer.hyperparameters.rate[0].numpy()
    order = 1 + np.argsort(rate[1 : 1 + count])
    groups = {"level": [0], "slow": [order[0]], "medium": [order[1]], "fast": [order[2]]}
    groups["day"] = list(range(1 + count, 1 + count + 2 * len(layer.periods)))
    assert set(found.index) == {*groups, "seasonal mean", "correction"} and len(layer.periods) == 3
    for name, coefficients in groups.items():
        mean, std, season = posterior(model, table, at, [int(c) for c in coefficients])
        shift = model.scaler_.shift[0] if name == "level" else 0.0
        np.testing.assert_allclose(found.loc[name, "mean"], mean + shift, atol=1e-8)
        np.testing.assert_allclose(found.loc[name, "std"], std, atol=1e-8)
    np.testing.assert_allclose(found.loc["seasonal mean", "mean"], season * model.scaler_.scale[0], atol=1e-8)
    np.testing.assert_allclose(found.loc["correction", "mean"], 0.0, atol=1e-8)  # there is no network


@FAR
def test_the_correction_is_what_the_network_adds(default) -> None:
    table = stations(3, 25, seed=6)
    at = table[["station", "date"]].iloc[::3]
    shown = table.drop(at.index)
    found = default.components(shown, at=at).set_index([*KEYS, "component"]).xs("correction", level="component")
    plain = default.predict(shown, at=at).set_index(KEYS)["mean"]
    model = default.model_
    weight = model.correction_weight.clone()
    try:
        model.correction_weight.zero_()  # no correction
        bare = default.predict(shown, at=at).set_index(KEYS)["mean"]
        without = default.components(shown, at=at)
    finally:
        model.correction_weight.copy_(weight)
    np.testing.assert_allclose(found["mean"], (plain - bare).reindex(found.index), atol=1e-9)
    assert found["mean"].abs().max() > 1e-3 and (found["std"] > 0).any()
    assert not without[without["component"] == "correction"][["mean", "std"]].any().any()
    observed = default.components(table)
    seen = table.melt(KEYS[:2], var_name="variable").dropna().set_index(KEYS).index
    zero = observed[observed["component"] == "correction"].set_index(KEYS).loc[seen]
    assert not zero[["mean", "std"]].any().any()  # an observation is not corrected


def test_processes_go_from_slow_to_fast(skewed) -> None:
    constants = time_constants(skewed.model_.layer)
    assert constants.shape == (3, 3) and (np.diff(constants, axis=1) <= 0).all()
    found = skewed.components(hourly(1, 200, seed=8))
    warm = found[found["variable"] == "warm"].pivot(index="date", columns="component", values="mean")
    steps = warm.diff().std() / warm.std()
    assert steps["slow"] < steps["medium"] < steps["fast"]


def test_seasons_have_the_names_of_the_calendar() -> None:
    hours = Clock(kind="datetime", unit="h", origin="2024-01-01")
    assert [season_name(p, (24.0,), hours) for p in (24.0, 12.0, 168.0, 84.0, 8766.0)] == [
        *["day"] * 2,
        *["week"] * 2,
        "year",
    ]
    assert season_name(36.0, (36.0,), hours) == "period 36h"
    assert season_name(12.0, (36.0, 12.0), Clock()) == "period 36"  # a harmonic belongs to its base
    assert season_name(10.0, (36.0, 10.0), Clock()) == "period 10"


def test_polars_and_saved_folders(skewed, tmp_path) -> None:
    table = hourly(1, 40, seed=9)
    skewed.save(tmp_path / "model")
    loaded = Forecaster.load(tmp_path / "model")
    expected = skewed.components(table)
    pd.testing.assert_frame_equal(loaded.components(table), expected)
    found = loaded.components(pl.from_pandas(table))
    assert isinstance(found, pl.DataFrame) and found.columns == list(expected.columns)
    np.testing.assert_array_equal(found["mean"].to_numpy(), expected["mean"])


def test_what_is_refused(repeater, skewed, table) -> None:
    with pytest.raises(ValueError, match="components must come from a structural model, and 'last-value' has none"):
        repeater.components(table)
    with pytest.raises(ValueError, match="`at` must be left out if `horizon` is given"):
        skewed.components(at=["2024-01-01"], horizon="2D")
    with pytest.raises(ValueError, match="not fitted yet"):
        Forecaster().components(table)
    with pytest.raises(ValueError, match="`id` must not have the name of a column of predictions, got 'component'"):
        Forecaster("mean").fit(table.rename(columns={"station": "component"}), id="component", time="date")


def test_nothing_asked_nothing_said(skewed) -> None:
    assert len(skewed.components(at={})) == 0
