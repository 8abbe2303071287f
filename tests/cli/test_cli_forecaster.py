"""`cru fit`, `forecast`, `impute`, `plot` and `view`, run as a user runs them."""

import json
import re
from pathlib import Path

import pandas as pd
import polars as pl
import pytest
from typer.testing import CliRunner

from cru import Forecaster
from cru.cli import app
from tests.cli.helpers import done, refused
from tests.forecaster.conftest import stations


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with observations and two models of them."""
    folder = tmp_path_factory.mktemp("own")
    stations().to_csv(folder / "observations.csv", index=False)
    numbered = stations().assign(date=stations()["date"].dt.day_of_year)
    numbered.to_parquet(folder / "numbers.parquet")
    for table, model in (("observations.csv", "model"), ("numbers.parquet", "numbers")):
        words = ["fit", str(folder / table), "--id", "station", "--time", "date", "--model", "last-value"]
        said = done(*words, "--out", folder / model)
        assert "24 series, " in said and "variables high, low" in said
        naive = re.search(r"R² (\S+) \(last value: (\S+)\) on [\d,]+ withheld values", said)
        assert naive and naive[1] == naive[2]  # which it is
        assert f"Stored in {folder / model}" in said
    return folder


@pytest.fixture(autouse=True)
def there(place, monkeypatch):
    monkeypatch.chdir(place)


def test_forecast_from_the_training_table():
    assert "240 rows in forecast.csv" in done(
        "forecast", "model", "--horizon", "10D", "--every", "2D", "--out", "forecast.csv"
    )
    written = pl.read_csv("forecast.csv", try_parse_dates=True)
    names = ["station", "date", "variable", "mean", "median", "std", "lo-50", "hi-50", "lo-90", "hi-90"]
    assert written.columns == names and written["date"].dtype == pl.Date
    said = Forecaster.load("model").forecast(horizon="10D", every="2D", level=[50, 90])
    pd.testing.assert_frame_equal(written.to_pandas(), said, check_dtype=False)


def test_forecast_from_another_table_with_numbers_as_times():
    words = ("--horizon", "5", "--level", "80", "--out", "new/forecast.parquet")
    done("forecast", "numbers", "numbers.parquet", *words)
    written = pl.read_parquet("new/forecast.parquet")
    assert written.columns[-2:] == ["lo-80", "hi-80"] and written["date"].dtype.is_float()


def test_view():
    assert re.fullmatch(r"page.html: 0.\d MB. Open it in any browser.\n", done("view", "model", "--out", "page.html"))
    done("view", "numbers", "numbers.parquet", "--horizon", "5", "--level", "80", "--out", "new/page.html")
    page = Path("new/page.html").read_text(encoding="utf-8")
    assert '"title":"numbers.parquet"' in page and '"levels":[80.0]' in page
    assert "--out must end in .html" in refused("view", "model", "--out", "page.pdf")
    assert "--horizon must be" in refused("view", "model", "--horizon", "5 apples")


def test_impute():
    missing = int(stations()["low"].isna().sum())
    assert f"{missing:,} missing values in filled.csv" in done(
        "impute", "model", "observations.csv", "--out", "filled.csv"
    )
    assert len(pl.read_csv("filled.csv")) == missing


@pytest.mark.parametrize(
    ("model", "table", "horizon"), [("model", "observations.csv", "30D"), ("numbers", "numbers.parquet", "9")]
)
def test_plot(model, table, horizon, place):
    assert "Picture: s03.png" in done("plot", model, table, "--series", "s03", "--horizon", horizon)
    assert (place / "s03.png").read_bytes().startswith(b"\x89PNG")
    done("plot", model, table, "--out", "first.png")


def test_anomalies(place):
    said = done("anomalies", "model", "observations.csv", "--significance", "0.05", "--out", "judged.csv")
    written = pl.read_csv("judged.csv", try_parse_dates=True).to_pandas()
    expected = Forecaster.load("model").anomalies("observations.csv", level=0.05)
    pd.testing.assert_frame_equal(written, expected, check_dtype=False)
    assert (
        f"{expected['anomaly'].sum()} of {len(expected):,} observations are anomalies. All are in judged.csv." in said
    )
    assert "observations are anomalies" in done("anomalies", "model", "--out", "own.parquet")  # the training table
    assert "--significance must be a probability" in refused(
        "anomalies", "model", "--significance", "5", "--out", "x.csv"
    )
    assert "must be a .csv or .parquet file" in refused("anomalies", "model", "--out", "x.xlsx")
    assert not (place / "x.csv").exists()


def test_plot_of_components(place):
    keys = ("--id", "station", "--time", "date")
    done("fit", "observations.csv", *keys, "--model", "structural", "--out", "structural")
    done("plot", "structural", "observations.csv", "--components", "--out", "parts.png")
    done("plot", "structural", "observations.csv", "--components", "--variable", "low", "--out", "low.svg")
    text = (place / "low.svg").read_text()
    assert all(word in text for word in (">low<", ">level<", ">slow<", ">week<", ">seasonal mean<", "over"))
    assert ">correction<" not in text and ">high<" not in text  # there is no network
    assert "Did you mean 'low'" in refused("plot", "structural", "observations.csv", "--variable", "lov")
    assert "components must come from a structural model" in refused(
        "plot", "model", "observations.csv", "--components"
    )


def test_a_long_table_with_chosen_values_and_averages(place):
    long = stations().melt(["station", "date"], var_name="what").dropna()
    pd.concat([long, long.head(1)]).to_csv(place / "long.csv", index=False)
    words = ["fit", "long.csv", "--id", "station", "--time", "date", "--variable", "what", "--values", "value"]
    words += ["--model", "mean", "--out", "long"]
    assert " at time 2024-" in refused(*words) and "Give --duplicates mean to average them." in refused(*words)
    done(*words, "--duplicates", "mean", "--no-history")
    assert "`table` must be given" in refused("forecast", "long", "--horizon", "1D", "--out", "x.csv")


def test_wrong_calls_are_one_sentence(place):
    assert "--horizon must be longer than zero" in refused("forecast", "model", "--horizon", "0D", "--out", "x.csv")
    assert "--horizon must be a number with" in refused("forecast", "model", "--horizon", "30", "--out", "x.csv")
    assert "--horizon must be a number," in refused("forecast", "numbers", "--horizon", "30D", "--out", "x.csv")
    assert "must be a .csv or .parquet file" in refused("forecast", "model", "--horizon", "1D", "--out", "x.xlsx")
    assert "there is no model folder nowhere" in refused("forecast", "nowhere", "--horizon", "1D", "--out", "x.csv")
    assert "there is no nothing.csv" in refused("impute", "model", "nothing.csv", "--out", "x.csv")
    assert "there is no 'sXX'" in refused("plot", "model", "observations.csv", "--series", "sXX")
    assert "must end in .png" in refused("plot", "model", "observations.csv", "--out", "x.jpg")
    assert "tells them apart with --id" in refused("fit", "observations.csv", "--time", "date", "--out", "other")
    assert "there is no model 'cruu'" in refused(
        "fit", "observations.csv", "--id", "station", "--time", "date", "--model", "cruu", "--out", "other"
    )
    assert "'when'" in refused("fit", "observations.csv", "--time", "when", "--out", "other")
    assert "must be a new or empty folder" in refused("fit", "observations.csv", "--time", "date", "--out", str(place))


def test_intervals_that_could_not_be_calibrated_are_said_to_be(place):
    stations(2, 5).to_csv(place / "few.csv", index=False)
    words = ("--id", "station", "--time", "date", "--model", "last-value", "--out", "few")
    assert "too few withheld values to calibrate" in done("fit", "few.csv", *words)
    assert "too few withheld values to calibrate" in (place / "few" / "README.md").read_text()
    assert "too few" not in (place / "model" / "README.md").read_text()


def test_what_cannot_be_kept_is_said_before_the_training():
    words = ["fit", "observations.csv", "--id", "station", "--time", "date", "--out"]
    assert "observations.csv/model cannot be written: Not a directory" in refused(*words, "observations.csv/model")
    assert "observations.csv/kept cannot be written" in refused("stream", "numbers", "--state", "observations.csv/kept")


def test_a_model_that_is_no_better_than_a_naive_rule_is_reported():
    words = ["--id", "station", "--time", "date", "--model", "last-value", "--out", "again"]
    assert "No better than the last value" in done("fit", "observations.csv", *words)


def test_a_slip_is_noted():
    slipped = stations()
    slipped.loc[7, "high"] = 1e6
    slipped.to_csv("slipped.csv", index=False)
    words = ["--id", "station", "--time", "date", "--model", "last-value", "--out", "slipped"]
    assert "Note: Possible outlier: 1e+06 of 'high' in series 's00' is " in done("fit", "slipped.csv", *words)


def test_an_existing_model_is_replaced_and_reported(tmp_path):
    words = ["fit", "numbers.parquet", "--id", "station", "--time", "date", "--model", "mean", "--minutes", "0"]
    assert "Stored in" in done(*words, "--out", tmp_path / "m")
    again = done(*words, "--out", tmp_path / "m")
    assert "Stored in place of the older model in" in again and "No better than" in again


def test_a_picture_is_called_like_its_series(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    said = done("plot", place / "model", place / "observations.csv")
    assert said == "Picture: s00.png\n" and (tmp_path / "s00.png").exists()


EVIL = "a\x1b[2J\x9b31m\u202eb"


def test_escape_codes_in_names_do_not_reach_the_terminal(tmp_path):
    table = stations().rename(columns={"high": EVIL})
    table.to_csv(tmp_path / "observations.csv", index=False)
    fit = ["fit", tmp_path / "observations.csv", "--id", "station", "--time", "date", "--model", "last-value", "--out"]
    said = done(*fit, tmp_path / EVIL)
    assert said.count("a\\x1b[2J\\x9b31m\\u202eb") > 2  # the variable, the folder and the table of scores
    said += refused("forecast", tmp_path / f"{EVIL} nowhere", "--horizon", "1D", "--out", tmp_path / "x.csv")
    said += refused(*fit, tmp_path / "other", "--values", EVIL + "?")
    assert not set("\x1b\x9b\u202e") & set(said), said


def test_ids_that_are_formulas_are_noted_and_come_back(tmp_path):
    table = stations()
    first = table["station"].iloc[0]
    table["station"] = table["station"].astype(str).replace(str(first), '=HYPERLINK("http://x")')
    table.to_csv(tmp_path / "observations.csv", index=False)
    fit = ["fit", tmp_path / "observations.csv", "--id", "station", "--time", "date", "--model", "last-value"]
    done(*fit, "--out", tmp_path / "model")
    words = ["forecast", tmp_path / "model", "--horizon", "2D", "--out"]
    said = done(*words, tmp_path / "out.csv")
    assert "holds '=HYPERLINK(\"http://x\")', which a spreadsheet runs as a formula" in said
    assert "spreadsheet" not in done(*words, tmp_path / "out.parquet")
    written = pl.read_csv(tmp_path / "out.csv", schema_overrides={"station": pl.String})
    assert set(written["station"]) == set(table["station"])


def test_kinds_are_declared_and_reported():
    table = stations().assign(visits=lambda frame: frame["high"].abs().round() // 4, sky="clear")
    table.loc[::3, "sky"] = "fog"
    table.to_csv("kinds.csv", index=False)
    words = ("fit", "kinds.csv", "--id", "station", "--time", "date", "--model", "last-value", "--out", "kinds")
    said = done(*words, "--kinds", "visits=count, sky=category")
    assert "Kinds of values: " in said and "visits count; sky category." in said
    assert dict(Forecaster.load("kinds").kinds_)["sky"] == "category"
    done("forecast", "kinds", "kinds.csv", "--horizon", "4D", "--out", "kinds-forecast.csv")
    assert {"sky=clear", "sky=fog"} < set(pl.read_csv("kinds-forecast.csv")["variable"])
    assert "--kinds must have the form rain=nonnegative" in refused(*words, "--kinds", "visits")
    assert "--kinds of 'visits' must be 'number'" in refused(*words, "--kinds", "visits=cuont")
    assert "Or declare categories in --kinds." in refused(*words)
    refusal = refused(*words, "--kinds", "sky=category,low=count")
    assert "column 'low' must hold integers of at least 0" in refusal and "in series 's00' at time 2024-01" in refusal


def test_known_and_static_columns(tmp_path):
    from tests.forecaster.test_inputs import clinic, future, past

    table = clinic(12, 16).drop(columns="z")
    past(table).to_csv("past.csv", index=False)
    future(table).to_csv("future.csv", index=False)
    roles = ("--id", "s", "--time", "t", "--known", "plan,dose=0,price=last", "--static", "age,ward")
    options = ("--epochs", "1", "--no-calendar", "--out", "clinic")
    said = done("fit", "past.csv", *roles, *options)
    assert "Known: plan, dose, price." in said and "Static: age, ward." in said and "variables y." in said
    model = Forecaster.load("clinic")
    assert model.columns_.known == {"plan": None, "dose": 0.0, "price": "last"} and not model.calendar
    ends = past(table).dropna(subset="y").groupby("s")["t"].max()
    pd.DataFrame({"s": ends.index, "t": ends.to_numpy() + 1, "plan": 0.5}).to_csv("future.csv", index=False)
    steps = ("--horizon", "1", "--every", "1", "--out", "forecast.csv")
    assert "12 rows in forecast.csv" in done("forecast", "clinic", *steps, "--known", "future.csv")
    assert "known values end before the horizon" in refused("forecast", "clinic", *steps)
    assert "missing values in" in done("impute", "clinic", "past.csv", "--out", "imputed.csv")
    lines = [
        {"id": "a", "time": 1.0, "values": {"y": 1.0, "plan": 0.0, "ward": "west"}},
        {"id": "a", "time": 2.0, "known": {"plan": 1.0}},
        {"id": "a", "time": 2.0},
    ]
    text = "\n".join(map(json.dumps, lines))
    result = CliRunner().invoke(app, ["stream", "clinic", "--ahead", "0.5"], input=text)
    first, asked, wrong = map(json.loads, result.stdout.splitlines())
    live = model.stream()
    live.update("a", 1.0, lines[0]["values"])
    assert first["predictions"] == live.predict("a", 1.5, known={"plan": 0.0})
    assert asked["predictions"] == live.predict("a", 2.0, known={"plan": 1.0})
    assert "`known` of 'plan' must have a value at every time" in wrong["error"]
    observation = {"id": "a", "time": 2.0, "values": {"y": 9.0, "plan": 0.0}}
    refusals = [
        (observation | {"static": 5}, "`static` must be a mapping"),
        (observation | {"known": {"plam": 1}}, "`known` must have known columns of the training table, got 'plam'"),
        (observation | {"known": {"plan": "much"}}, "`known` of 'plan' must be finite numbers"),
        (observation | {"known": {"dose": 1}}, "`known` of 'plan' must have a value at every time"),
        (observation | {"known": [1]}, "`known` must be a mapping"),
    ]
    for extra in ((), ("--significance", "0.01")):
        text = "\n".join(map(json.dumps, [lines[0], *(line for line, _ in refusals), lines[1]]))
        result = CliRunner().invoke(app, ["stream", "clinic", *extra], input=text)
        assert result.exit_code == 0, result.exception
        _, *answers, after = map(json.loads, result.stdout.splitlines())
        for answer, (_, said) in zip(answers, refusals, strict=True):
            assert answer["error"].startswith(said)
        assert after == asked  # a line that gets an error changes nothing
    given = {"id": "b", "time": 1.0, "values": {"y": 1.0, "plan": 0.0}, "static": {"ward": "west"}}
    result = CliRunner().invoke(app, ["stream", "clinic"], input=json.dumps(given))
    live.update("b", 1.0, given["values"], static=given["static"])
    assert json.loads(result.stdout)["predictions"] == live.predict("b", 1.0, known={"plan": 0.0})
