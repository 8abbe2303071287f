"""`cru backtest` and `cru compare`, run as a user runs them."""

import numpy as np
import polars as pl
import pytest

from cru import Forecaster
from tests.cli.helpers import done, refused
from tests.forecaster.conftest import stations

KEYS = ("--id", "station", "--time", "date")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with observations, and a model of dates and one of numbers."""
    folder = tmp_path_factory.mktemp("backtest")
    stations().to_csv(folder / "observations.csv", index=False)
    stations().assign(date=stations()["date"].dt.day_of_year).to_parquet(folder / "numbers.parquet")
    for table, model in (("observations.csv", "model"), ("numbers.parquet", "numbers")):
        done("fit", folder / table, *KEYS, "--model", "last-value", "--out", folder / model)
    return folder


@pytest.fixture(autouse=True)
def there(place, monkeypatch):
    monkeypatch.chdir(place)


def test_backtest_prints_scores_and_writes_predictions():
    words = ("--horizon", "10D", "--every", "5D", "--cuts", "3", "--out", "new/predictions.csv")
    said = done("backtest", "model", "observations.csv", *words)
    found = Forecaster.load("model").backtest("observations.csv", horizon="10D", every="5D", cuts=3)
    assert f"{len(found.predictions):,} predictions in new/predictions.csv" in said
    assert "1.25D to 2.5D" in said and "seasonal-naive" in said and "reference" in said
    whole = found.scores(()).set_index("model").loc["model"]
    assert f"{whole['mae']:.4g}" in said and f"{whole['coverage-90']:.1%}" in said
    written = pl.read_csv("new/predictions.csv", try_parse_dates=True)
    assert written.columns == found.predictions.columns.tolist()
    np.testing.assert_allclose(written["mean"], found.predictions["mean"])
    np.testing.assert_allclose(written["lead"], found.predictions["lead"].dt.total_seconds() / 3600)  # hours
    assert "was fitted to this table" not in said


def test_backtest_of_the_training_table_says_so():
    words = ("backtest", "numbers", "--horizon", "10", "--cuts", "60,70.5", "--out", "predictions.parquet")
    assert "was fitted to this table" in done(*words)
    assert sorted(set(pl.read_parquet("predictions.parquet")["cut"])) == [60.0, 70.5]
    assert "was fitted to this table" not in done(*words, "--refit")


def test_compare_prints_one_table_with_every_model():
    said = done("compare", "observations.csv", *KEYS, "--models", "auto,mean", "--epochs", "1", "--horizon", "20D")
    rows = [line for line in said.splitlines() if line.startswith("│")]
    names = [row.split("│")[1].strip() for row in rows]
    assert names[:2] == ["auto", "mean"] and {"last-value", "seasonal-naive", "climatology", "blend"} <= set(names)
    assert len({row.split("│")[2].strip() for row in rows}) == 1, "all models are scored on the same values"


def test_compare_by_variable_is_the_backtest_of_a_refitted_model():
    words = ("--models", "mean", "--horizon", "20", "--cuts", "2", "--by", "variable", "--out", "scores.csv")
    done("compare", "numbers.parquet", *KEYS, *words)
    model = Forecaster("mean", progress=False).fit("numbers.parquet", id="station", time="date")
    expected = model.backtest(horizon=20, cuts=2, refit=True).scores("variable").replace("model", "mean")
    written = pl.read_csv("scores.csv")
    assert written["model"].to_list() == expected["model"].tolist()
    np.testing.assert_allclose(written["mae"], expected["mae"])
    np.testing.assert_allclose(written["coverage-90"], expected["coverage-90"])


def test_wrong_calls_are_one_sentence():
    words = ("backtest", "model", "--horizon")
    assert "--horizon must be longer than zero" in refused(*words, "0D")
    assert "--horizon must be so short that" in refused(*words, "5000D")
    assert "--cuts must be from 1 to 1000" in refused(*words, "5D", "--cuts", "0")
    assert "--cuts must be dates like 2024-01-31T12:00" in refused(*words, "5D", "--cuts", "soon")
    assert "--every must be left out if --cuts is a list" in refused(
        *words, "5D", "--cuts", "2024-02-01", "--every", "1D"
    )
    assert "must be a .csv or .parquet file" in refused(*words, "5D", "--out", "x.xlsx")
    compare = ("compare", "observations.csv", *KEYS, "--horizon", "5D")
    assert "there is no model 'cruu'" in refused(*compare, "--models", "auto,cruu")
    assert "--models must be different names" in refused(*compare, "--models", "mean,mean")
    assert "--by must have entries of" in refused(*compare, "--by", "varible")
