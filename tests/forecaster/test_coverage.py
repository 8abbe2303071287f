import numpy as np
import polars as pl
import pytest

import cru
from cru import Forecaster


def table(series: cru.data.SeriesSet) -> pl.DataFrame:
    values = np.where(series.mask, series.values, np.nan).astype(np.float64)
    columns = {name: values[:, k] for k, name in enumerate(series.names)}
    return pl.DataFrame({"id": np.array(series.ids)[series.series_index], "time": series.times} | columns)


@pytest.mark.data
@pytest.mark.filterwarnings("ignore:Possible outlier. 95.* of 'pH'")  # which is true
@pytest.mark.filterwarnings("ignore:'Temp' has the inferred kind 'nonnegative'")  # it is -18 degrees twice
@pytest.mark.parametrize(
    ("name", "cuts", "horizon"), [("ushcn", (800.0, 900.0, 1000.0, 1100.0), 7.0), ("physionet", (30.0,), 6.0)]
)
def test_intervals_cover_observations_of_stations_and_patients_that_were_held_out(
    name, cuts, horizon, real_data, shared_cache
):
    """With a rule for the mean, so that nothing is trained: it is calibration that has to make the intervals true.
    benchmarks/coverage.py does it with a trained CRU."""
    splits = cru.data.load(name, data_dir=real_data, cache=shared_cache, scaling=None).first(400, 400, 400)
    model = Forecaster("last-value", progress=False).fit(table(splits.train), id="id", time="time")
    test = table(splits.test)
    found = []
    for cut in cuts:  # in all seasons: one week is not like all others
        later = test.filter(pl.col("time").is_between(cut, cut + horizon, closed="right"))
        said = model.predict(test.filter(pl.col("time") <= cut), at=later.select("id", "time"), level=90)
        truth = later.unpivot(index=["id", "time"], value_name="value").filter(pl.col("value").is_not_nan())
        found.append(said.join(truth, on=["id", "time", "variable"]))
    both = pl.concat(found)
    assert len(both) > 2000
    inside = both.select(pl.col("value").is_between("lo-90", "hi-90").mean()).item()
    assert 0.87 <= inside <= 0.95  # values that repeat exactly make more of them true than 90 %
