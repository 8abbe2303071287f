from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
from cru.forecaster import corrections, fitting, scoring

FAR = pytest.mark.filterwarnings("ignore:Predictions extend")  # farther than the table could teach


def stations(count: int = 24, observations: int = 30, *, seed: int = 0) -> pd.DataFrame:
    """Stations with days of their own: a slow wander, a second variable that follows it, values missing."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(count):
        days = np.sort(rng.choice(4 * observations, observations, replace=False))
        gaps = np.diff(days, prepend=days[0])
        wander = 10 + np.cumsum(rng.normal(0, 1, observations) * np.sqrt(gaps))
        follow = wander / 2 + rng.normal(0, 0.3, observations)
        follow[rng.random(observations) < 0.3] = np.nan
        date = pd.Timestamp("2024-01-01") + pd.to_timedelta(days, unit="D")
        parts.append(pd.DataFrame({"station": f"s{number:02d}", "date": date, "high": wander, "low": follow}))
    return pd.concat(parts, ignore_index=True)


@contextmanager
def short_fits() -> Iterator[None]:
    """Train and calibrate on few values: for tests of what a forecaster does, not of how accurate it is."""
    few = replace(corrections.CORRECTION_TRAINING, rows=(2_000, 4_000), validation=2_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corrections, "CORRECTION_TRAINING", few)
        patch.setattr(fitting, "FIT", replace(fitting.FIT, segments_per_epoch=(16, 16)))
        patch.setattr(scoring, "SCORING", replace(scoring.SCORING, enough_compared=1000))
        yield


@pytest.fixture
def short_fit() -> Iterator[None]:
    with short_fits():
        yield


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    return stations()


@pytest.fixture(scope="session")
def repeater(table) -> Forecaster:
    """A model that says the last value: nothing to train, and every answer can be told by hand."""
    return Forecaster("last-value", progress=False).fit(table, id="station", time="date")


@pytest.fixture(scope="session")
def trained() -> Forecaster:
    """A CRU without a structural base, trained for a moment."""
    options = {"options": {"num_basis": 3}, "epochs": 20, "learning_rate": 0.01, "progress": False, "minutes": None}
    return Forecaster("cru", base=None, **options).fit(stations(200, 25, seed=1), id="station", time="date")


@pytest.fixture(scope="session")
def default() -> Forecaster:
    """The default: a network on top of a structural model."""
    return Forecaster(epochs=3, progress=False).fit(stations(60, 25, seed=1), id="station", time="date")
