"""Periods are found where there are some, and nowhere else."""

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
from cru.data.series import SeriesSet, make_series
from cru.forecaster.structural_options import find_periods


def series_of(values_at, count: int = 20, steps: int = 150, span: float = 300.0, seed: int = 0) -> SeriesSet:
    """Series at random times; ``values_at`` maps times and a generator to values."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, span, (count, steps)))
    values = np.stack([values_at(row, rng) for row in times])
    offsets = np.arange(count + 1) * steps
    return make_series(times.ravel(), values.reshape(-1, 1), offsets, ids=[*map(str, range(count))], names=["y"])


def wave(times, rng, period=24.0):
    return np.sin(2 * np.pi * times / period + rng.uniform(0, 6)) + rng.normal(0, 1, len(times))


def walk(times, rng):
    return rng.normal(0, 1, len(times)).cumsum()


@pytest.mark.parametrize("count", [1, 20])
def test_a_period_is_found_whatever_its_phase(count):
    found = find_periods(series_of(wave, count, steps=300), 1.0)
    assert found == pytest.approx([24.0], rel=0.03)


def test_a_sharp_wave_has_one_period_with_harmonics():
    def pulse(times, rng):
        return ((times + rng.uniform(0, 30)) % 30 < 5) + rng.normal(0, 0.1, len(times))

    assert find_periods(series_of(pulse, steps=300), 1.0) == pytest.approx([30.0], rel=0.03)


def test_what_is_known_is_not_found_again():
    assert find_periods(series_of(wave), 2.0, known=(24.0,)) == ()


@pytest.mark.parametrize("made", [walk, lambda times, rng: rng.normal(0, 1, len(times))])
def test_noise_has_no_period(made):
    found = [find_periods(series_of(made, count, seed=seed), 2.0) for seed, count in enumerate([1, 2, 5, 20] * 5)]
    assert found == [()] * len(found)


def test_short_constant_and_empty_series_have_no_period():
    assert find_periods(series_of(wave, steps=20), 2.0) == ()
    assert find_periods(series_of(lambda times, rng: np.full(len(times), 3.0)), 2.0) == ()


def test_a_forecast_continues_a_period_of_numbers():
    rng = np.random.default_rng(0)
    day = np.sort(rng.uniform(0, 200, (30, 150)))
    phase = rng.uniform(0, 6, (30, 1))
    frame = pd.DataFrame({"name": np.arange(30).repeat(150), "day": day.ravel()})
    frame["y"] = (np.sin(2 * np.pi * day / 9.3 + phase) + rng.normal(0, 0.1, day.shape)).ravel()
    model = Forecaster("structural", progress=False).fit(frame, id="name", time="day")
    said = model.predict(frame, at=[204.0])["mean"].to_numpy()
    truth = np.sin(2 * np.pi * 204.0 / 9.3 + phase[:, 0])
    assert np.sqrt(np.mean((said - truth) ** 2)) < 0.2
