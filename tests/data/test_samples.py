"""The sample table of the package: what it holds, and that its script makes it again."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cru
from cru.data import columns
from cru.data.samples import MISSING
from tests.data.raw_formats import dly_line

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "make_weather_sample.py"


def test_the_weather_has_what_its_description_says() -> None:
    table = cru.data.sample("weather")
    assert table.columns.tolist() == ["station", "date", "TMAX", "TMIN", "PRCP", "SNWD"]
    assert table["station"].nunique() == 60 and not table.duplicated(["station", "date"]).any()
    assert table["date"].min() == pd.Timestamp("1990-01-01") and table["date"].max() == pd.Timestamp("1992-12-31")
    values = table.drop(columns=["station", "date"])
    assert values.notna().any(axis=1).all()
    missing = 1 - values.notna().groupby(table["station"]).sum().sum(axis=1) / (4 * 1096)
    assert missing.between(0.03, 0.25).all()
    assert (table["PRCP"].dropna() >= 0).all() and (table["SNWD"].dropna() >= 0).all()
    assert table["TMAX"].between(-45, 55)[table["TMAX"].notna()].all()  # °C, not tenths
    days = table.groupby("station")["date"].apply(lambda date: date.diff().dt.days.max())
    assert days.max() >= 28  # a month without any observation


def test_its_file_is_small_and_names_its_source() -> None:
    path = ROOT / "src" / "cru" / "data" / "samples" / "weather.npz"
    assert path.stat().st_size < 600_000
    with np.load(path, allow_pickle=False) as stored:
        source, units = stored["source"].item(), stored["units"].tolist()
    assert "GHCN-Daily" in source and "public domain" in source and " on 2" in source
    assert units == ["°C", "°C", "mm", "mm"]


def test_without_pandas_it_is_a_polars_frame(monkeypatch) -> None:
    expected = cru.data.sample("weather")
    monkeypatch.setattr(columns, "find_spec", lambda name: None if name == "pandas" else find_spec(name))
    found = cru.data.sample("weather")
    assert type(found).__module__.startswith("polars")
    assert {name: found[name].null_count() for name in found.columns} == expected.isna().sum().to_dict()
    assert np.array_equal(found["TMIN"].to_numpy(), expected["TMIN"].to_numpy(), equal_nan=True)


def test_an_unknown_name_is_corrected() -> None:
    with pytest.raises(ValueError, match=r"'whether'\. Did you mean 'weather'"):
        cru.data.sample("whether")


def test_the_script_keeps_values_and_gaps(tmp_path) -> None:
    """One station whose values are the numbers of the days; the fifth of each month is missing, the sixth flagged."""
    days = {day: (day, "X" if day == 6 else " ") for day in range(1, 32) if day != 5}
    elements = ("TMAX", "TMIN", "PRCP", "SNWD")
    months = [(year, month) for year in (1990, 1991, 1992) for month in range(1, 13)]
    lines = [dly_line("USC00000001", *month, element, days) for month in months for element in elements]
    (tmp_path / "raw.dly").write_text("".join(f"{line}\n" for line in lines))
    runpy.run_path(str(SCRIPT))["main"](tmp_path / "raw.dly", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as stored:
        values, scale = stored["values"], stored["scale"]
    assert values.shape == (4, 60, 1096)  # the one station that there is, again and again
    february = values[:, 0, 31 : 31 + 29] / scale[:, None]
    assert february[0, :4].tolist() == [0.1, 0.2, 0.3, 0.4] and february[3, :4].tolist() == [1, 2, 3, 4]
    assert (values[:, :, [31 + 4, 31 + 5]] == MISSING).all() and (values[:, :, 31 + 6] == 7).all()


@pytest.mark.data
def test_the_script_makes_the_packaged_table(tmp_path, real_data) -> None:
    raw = real_data / "ushcn" / "hcn_1990_1994_core5.dly.gz"
    runpy.run_path(str(SCRIPT))["main"](raw, tmp_path / "weather.npz")
    packaged = ROOT / "src" / "cru" / "data" / "samples" / "weather.npz"
    with np.load(packaged, allow_pickle=False) as old, np.load(tmp_path / "weather.npz", allow_pickle=False) as new:
        assert set(old) == set(new)
        assert all(np.array_equal(old[name], new[name]) for name in old if name != "source")  # which has the date
