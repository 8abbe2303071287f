import datetime as dt
import gzip

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cru.data import from_arrays, from_table, regression

WIDE = {
    "station": ["b", "a", "a", "b", "a"],
    "day": [2.0, 5.0, 1.0, 0.5, 3.0],
    "tmax": [20.0, 15.0, 11.0, np.nan, 13.0],
    "tmin": [2, 5, 1, 0, 3],
}


@pytest.fixture(params=["pandas", "polars", "csv", "csv.gz", "parquet"])
def as_table(request, tmp_path):
    """A dictionary of columns as each kind of table there is."""

    def make(columns):
        if request.param == "polars":
            return pl.DataFrame(columns)
        frame = pd.DataFrame(columns)
        if request.param == "pandas":
            return frame
        path = tmp_path / f"table.{request.param}"
        if request.param == "parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False)
        return path

    return make


def test_wide_rows_are_sorted_into_series(as_table):
    series = from_table(as_table(WIDE), id="station", time="day", values=["tmax", "tmin"], unit="D")
    assert series.ids == ("a", "b") and series.names == ("tmax", "tmin") and series.time_unit == "D"
    assert series.times.tolist() == [1, 3, 5, 0.5, 2] and series.offsets.tolist() == [0, 3, 5]
    assert series.values[:, 0].tolist() == [11, 13, 15, 0, 20]
    assert series.mask[:, 0].tolist() == [True, True, True, False, True]
    assert series.values[:, 1].tolist() == [1, 3, 5, 0, 2] and series.mask[:, 1].all()


def test_all_other_columns_are_values_by_default(as_table):
    assert from_table(as_table(WIDE), id="station", time="day").names == ("tmax", "tmin")


def test_long_rows_become_columns(as_table):
    long = {
        "who": [2, 1, 1, 2, 1],
        "when": [0, 5, 5, 0, 1],
        "what": ["hr", "hr", "bp", "bp", "hr"],
        "value": [60.0, 70.0, 120.0, np.nan, 71.0],
    }
    series = from_table(as_table(long), id="who", time="when", variable="what", values="value")
    assert series.ids == ("1", "2") and series.names == ("bp", "hr")
    assert series.times.tolist() == [1, 5, 0]
    assert series.values.tolist() == [[0, 71], [120, 70], [0, 60]]
    assert series.mask.tolist() == [[False, True], [True, True], [False, True]]


def test_columns_of_labels_are_targets_of_a_regression(as_table):
    table = as_table(WIDE | {"rain": [1.0, 2.0, np.nan, 4.0, 5.0], "snow": [0, 1, 0, 1, 0]})
    series = from_table(table, id="station", time="day", targets=["rain", "snow"])
    assert series.names == ("tmax", "tmin") and set(series.per_time) == {"rain", "snow"}
    tasked = regression(series, target="rain")
    assert tasked.target_shape == (1,) and tasked.input_shape == (2,)
    assert tasked.targets[:, 0].tolist() == [0, 5, 2, 4, 1], "sorted as the observations are"
    assert tasked.target_mask[:, 0].tolist() == [False, True, True, True, True]
    both = regression(series, target=["snow", "rain"])
    assert both.targets.tolist() == [[0, 0], [0, 5], [1, 2], [1, 4], [0, 1]]
    assert both.batch([1]).targets.tolist() == [[[1, 4], [0, 1]]]
    chosen = from_table(table, id="station", time="day", values=["tmin"], targets="rain")
    assert chosen.names == ("tmin",) and list(chosen.per_time) == ["rain"]


def test_labels_of_one_time_are_averaged_as_observations_are():
    frame = pd.DataFrame({"t": [1, 1, 2], "x": [1.0, 3.0, 5.0], "y": [np.nan, 4.0, 6.0]})
    series = from_table(frame, id=None, time="t", targets="y", duplicates="mean")
    assert series.values[:, 0].tolist() == [2, 5] and series.per_time["y"].tolist() == [4, 6]


def test_mistakes_in_targets_are_explained(as_table):
    table = as_table(WIDE | {"sky": list("abcde")})
    for targets in ("tmax", ["day"], ["tmin", "tmin"]):
        with pytest.raises(ValueError, match=r"`targets` must not repeat a column or hold"):
            from_table(table, id="station", time="day", values="tmax", targets=targets)
    with pytest.raises(ValueError, match=r"got 'sky'"):
        from_table(table, id="station", time="day", targets="sky")
    with pytest.raises(ValueError, match=r"must have the columns 'rain'"):
        from_table(table, id="station", time="day", values="tmax", targets="rain")
    with pytest.raises(ValueError, match=r"`targets` must be columns of a wide table"):
        from_table(table, id="station", time="day", variable="sky", values="tmax", targets="tmin")


def test_dates_are_counted_in_the_unit_from_the_earliest(as_table):
    dates = [dt.datetime(2024, 3, 1, 12), dt.datetime(2024, 2, 28), dt.datetime(2024, 3, 1)]
    table = as_table({"id": ["a", "a", "b"], "date": dates, "x": [1.0, 2.0, 3.0]})
    series = from_table(table, id="id", time="date", unit="D")
    assert series.times.tolist() == [0, 2.5, 2.0] and series.values[:, 0].tolist() == [2, 1, 3]
    assert series.time_unit == "D" and series.origin.startswith("2024-02-28T00:00:00")
    assert from_table(table, id="id", time="date", unit="h").times.tolist() == [0, 60, 48]
    with pytest.raises(
        ValueError, match=r"`unit` must be one of us, ms, s, min, h, D, W where times are dates, got None"
    ):
        from_table(table, id="id", time="date")


def test_the_origin_is_the_earliest_date_also_with_years_of_five_digits():
    seconds = pl.Series([500_000_000_000, 0]).cast(pl.Int64) * 10**6
    frame = pl.DataFrame({"t": seconds.cast(pl.Datetime("us")), "x": [1.0, 2.0]})
    series = from_table(frame, id=None, time="t", unit="s")
    assert series.origin.startswith("1970-01-01T00:00:00") and series.times.tolist() == [0, 5e11]


def test_time_zones_are_one_line_of_time():
    zoned = pd.to_datetime(["2024-03-31 00:30", "2024-03-31 03:30"]).tz_localize("Europe/Berlin")
    frame = pd.DataFrame({"id": 1, "t": zoned, "x": [1.0, 2.0]})
    assert from_table(frame, id="id", time="t", unit="h").times.tolist() == [0, 2], "summer time began between"
    days = pl.DataFrame({"id": [1, 1], "t": [dt.date(2024, 1, 1), dt.date(2024, 1, 3)], "x": [1.0, 2.0]})
    assert from_table(days, id="id", time="t", unit="D").times.tolist() == [0, 2]


def test_nanoseconds_and_milliseconds_count_alike():
    for unit in ("ns", "us", "ms"):
        frame = pl.DataFrame({"t": [0, 1500], "x": [1.0, 2.0]}).with_columns(
            pl.col("t").cast(pl.Duration("ms")).cast(pl.Duration(unit))
            + pl.lit(dt.datetime(2020, 1, 1)).cast(pl.Datetime(unit))
        )
        assert from_table(frame, id=None, time="t", unit="s").times.tolist() == [0, 1.5]


def test_duplicates_are_refused_or_averaged(as_table):
    table = as_table({"id": [7, 7, 7], "t": [1.0, 1.0, 2.0], "x": [1.0, 3.0, 5.0], "y": [np.nan, 4.0, np.nan]})
    with pytest.raises(ValueError, match=r"got 1 repeated times, the first in series 7 at time 1"):
        from_table(table, id="id", time="t")
    series = from_table(table, id="id", time="t", duplicates="mean")
    assert series.values.tolist() == [[2, 4], [5, 0]] and series.mask.tolist() == [[True, True], [True, False]]
    long = as_table({"id": [7, 7, 7], "t": [1.0, 1.0, 1.0], "v": ["x", "x", "y"], "value": [1.0, 3.0, 9.0]})
    with pytest.raises(ValueError, match=r"in series 7 at time 1"):
        from_table(long, id="id", time="t", variable="v", values="value")
    assert from_table(long, id="id", time="t", variable="v", values="value", duplicates="mean").values.tolist() == [
        [2, 9]
    ]


def test_text_and_categories_are_named(as_table):
    table = as_table({"id": [1, 2], "t": [0, 1], "x": [1.0, 2.0], "colour": ["red", "blue"], "note": ["a", "b"]})
    with pytest.raises(ValueError, match=r"got 'colour' .*, 'note'"):
        from_table(table, id="id", time="t")
    assert from_table(table, id="id", time="t", values="x").names == ("x",)
    categories = pd.DataFrame({"id": [1, 2], "t": [0, 1], "kind": pd.Categorical(["p", "q"])})
    with pytest.raises(ValueError, match=r"'kind'"):
        from_table(categories, id="id", time="t")


def test_a_missing_column_is_named(as_table):
    with pytest.raises(ValueError, match=r"must have the columns 'humidity'; it has 'station', 'day', 'tmax', 'tmin'"):
        from_table(as_table(WIDE), id="station", time="day", values=["tmax", "humidity"])
    with pytest.raises(ValueError, match=r"must have the columns 'patient'"):
        from_table(as_table(WIDE), id="patient", time="day")


def test_infinite_values_are_refused(as_table):
    table = as_table({"id": [1, 1], "t": [0.0, 1.0], "x": [1.0, np.inf]})
    with pytest.raises(ValueError, match=r"column 'x' must be finite.* got an infinity in series 1 at time 1"):
        from_table(table, id="id", time="t")


def test_keys_must_be_filled(as_table):
    with pytest.raises(ValueError, match=r"column 't' must be filled in every row, got 1 of 2 missing"):
        from_table(as_table({"id": [1, 1], "t": [0.0, np.nan], "x": [1.0, 2.0]}), id="id", time="t")
    with pytest.raises(ValueError, match=r"column 'id' must be filled"):
        from_table(as_table({"id": ["a", None], "t": [0.0, 1.0], "x": [1.0, 2.0]}), id="id", time="t")


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_times_written_as_text_are_read_in_a_frame_as_in_a_file(frame, tmp_path):
    for written in (["2024-01-01", "2024-01-03"], ["2024-01-01T06:00Z", "2024-01-03T06:00Z"], ["1.5", "3.5"]):
        table = frame({"when": written, "x": [1.0, 2.0]})
        (tmp_path / "same.csv").write_text(
            "when,x\n" + "".join(f"{t},{x}\n" for t, x in zip(written, (1, 2), strict=True))
        )
        unit = "D" if "-" in written[0] else None
        pl.DataFrame({"when": written, "x": [1.0, 2.0]}).write_parquet(tmp_path / "same.parquet")
        labels = pl.DataFrame({"when": pl.Series(written, dtype=pl.Categorical), "x": [1.0, 2.0]})
        for source in (table, tmp_path / "same.csv", tmp_path / "same.parquet", labels):
            times = from_table(source, id=None, time="when", unit=unit).times
            assert times[1] - times[0] == 2
    with pytest.raises(ValueError, match=r"'when' must hold dates of one form"):
        from_table(frame({"when": ["2024-01-01", "2024-13-01"], "x": [1.0, 2.0]}), id=None, time="when", unit="D")


def test_other_mistakes_are_explained(tmp_path):
    frame = pd.DataFrame(WIDE)
    with pytest.raises(ValueError, match=r"the table must be a pandas or polars frame .* got list"):
        from_table([1, 2], id=None, time="t")
    with pytest.raises(ValueError, match=r"\.csv, \.csv\.gz or \.parquet file, got .*table\.xlsx"):
        from_table(tmp_path / "table.xlsx", id=None, time="t")
    with pytest.raises(FileNotFoundError, match=r"there is no .*nowhere.csv"):
        from_table(tmp_path / "nowhere.csv", id=None, time="t")
    (tmp_path / "broken.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(ValueError, match=r"must be a readable table"):
        from_table(tmp_path / "broken.parquet", id=None, time="t")
    with pytest.raises(ValueError, match=r"column 'station' must hold numbers or dates like .* got 'b'"):
        from_table(frame, id=None, time="station", values=["tmax"])
    with pytest.raises(ValueError, match=r"at least one row"):
        from_table(frame[:0], id="station", time="day")
    with pytest.raises(ValueError, match=r"must not repeat a column"):
        from_table(frame, id="station", time="day", values=["day"])
    with pytest.raises(ValueError, match=r"at least one column of observations"):
        from_table(frame, id="station", time="day", values=[])
    with pytest.raises(ValueError, match=r"`values` must name the one column"):
        from_table(frame, id="station", time="day", variable="tmax")
    infinite = frame.assign(day=np.inf)
    with pytest.raises(ValueError, match=r"column 'day' must hold finite times, got 5 infinite"):
        from_table(infinite, id="station", time="day")
    mixed = pd.DataFrame({"t": [0, 1], "x": pd.Series([1, "one"], dtype=object)})
    with pytest.raises(ValueError, match=r"must hold numbers in its columns of observations, got 'x'"):
        from_table(mixed, id=None, time="t")


def test_numbers_that_change_their_kind_far_down_a_csv_file(tmp_path):
    lines = ["id,t,x,y", *(f"1,{k},{k}," for k in range(3000)), "1,3000,0.5,2.5", "2b,3001,1e3,NA"]
    path = tmp_path / "late.csv"
    path.write_text("\n".join(lines) + "\n")
    series = from_table(path, id="id", time="t")
    assert series.ids == ("1", "2b") and series.values[3000].tolist() == [0.5, 2.5]
    assert series.mask[:, 1].sum() == 1


@pytest.mark.parametrize("row", [999, 1000, 1001, 1002, 1500])
@pytest.mark.parametrize("late", ["2b,0.5,0.5,true,2.5", "2,-1,1e3,false,", "x,7,NA,,NaN"])
def test_a_csv_file_may_change_at_any_row(tmp_path, row, late):
    lines = [f"1,{k},{k},true," for k in range(3000)]
    lines[row] = late
    path = tmp_path / "late.csv"
    path.write_text("\n".join(["id,t,x,b,y", *lines]) + "\n")
    series = from_table(path, id="id", time="t")
    who, when, *values = late.split(",")
    assert series.ids == ("1", who) and series.lengths.tolist() == [2999, 1] and series.times[-1] == float(when)
    known = {"true": 1.0, "false": 0.0, "": 0.0, "NA": 0.0, "NaN": 0.0}
    assert series.values[-1].tolist() == [known[v] if v in known else float(v) for v in values]
    path.write_text("\n".join(["id,t,x,b,y", *lines[:-1], "1,1,some text,true,"]) + "\n")
    with pytest.raises(ValueError, match=r"got 'x' \('some text' in row 3000\)\."):
        from_table(path, id="id", time="t")


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_names_in_a_csv_file_are_taken_as_they_are_written(tmp_path, ending):
    path = tmp_path / f"names.{ending}"
    frame = pd.DataFrame(
        {"id": ["7", "007", "NA", "10"], "t": [0, 1, 2, 3], "v": ["nan", "01", "1", "nan"], "x": ["1", "NA", "3", "4"]}
    )
    frame.to_csv(path, index=False)
    wide = from_table(path, id="id", time="t", values="x")
    assert wide.ids == ("007", "10", "7", "NA") and wide.mask[:, 0].tolist() == [False, True, True, True]
    long = from_table(path, id="id", time="t", variable="v", values="x")
    assert long.ids == wide.ids and long.names == ("01", "1", "nan")
    frame.assign(id=["7", "", "NA", "10"]).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"column 'id' must be filled in every row, got 1 of 4"):
        from_table(path, id="id", time="t", values="x")


def test_series_come_in_one_order_from_every_kind_of_table(as_table):
    table = as_table({"id": [10, 9, 100, 1], "t": [0, 0, 0, 0], "x": [1.0, 2.0, 3.0, 4.0]})
    assert from_table(table, id="id", time="t").ids == ("1", "9", "10", "100")


def test_only_dates_that_mean_the_same_everywhere_are_read(tmp_path):
    path = tmp_path / "dates.csv"
    path.write_text("id,t,x\n1,02/01/2020,3\n1,03/01/2020,4\n")
    with pytest.raises(ValueError, match=r"dates like 2024-01-31 or 2024-01-31T12:00:00, got '02/01/2020'"):
        from_table(path, id="id", time="t", unit="D")
    path.write_text("id,t,x\n1,2020-01-02T00:00:00+01:00,3\n1,2020-01-02T00:00:00Z,4\n")
    assert from_table(path, id="id", time="t", unit="h").times.tolist() == [0, 1]


def test_names_of_columns_are_text_and_differ():
    with pytest.raises(ValueError, match=r"two columns of one name"):
        from_table(pd.DataFrame([[1, 2, 3, 4]], columns=["id", "t", "x", "x"]), id="id", time="t")
    with pytest.raises(ValueError, match=r"columns with text for names, got \[0\]"):
        from_table(pd.DataFrame({"t": [1], 0: [2]}), id=None, time="t")


def test_one_series_needs_no_id():
    series = from_table(pl.DataFrame({"t": [1, 0], "x": [1.5, 2.5]}), id=None, time="t")
    assert len(series) == 1 and series.values[:, 0].tolist() == [2.5, 1.5]


def test_dictionary_of_arrays():
    X = np.array([[[1, np.nan], [2, 3]], [[4, 5], [np.nan, np.nan]]])
    plain = from_arrays({"X": X, "y": [0, 1]})
    assert plain.times.tolist() == [0, 1, 0, 1] and plain.mask.sum() == 5 and plain.names == ("x0", "x1")
    hours = np.array([[0.5, 2.0], [1.0, np.nan]])
    ragged = from_arrays({"X": X.astype(np.float32), "time_points": hours}, names=["hr", "bp"], time_unit="h")
    assert ragged.lengths.tolist() == [2, 1] and ragged.times.tolist() == [0.5, 2, 1]
    assert ragged.values.dtype == np.float32 and ragged.names == ("hr", "bp")
    with pytest.raises(ValueError, match=r"entry 'X', got \['Y'\]"):
        from_arrays({"Y": X})
    with pytest.raises(ValueError, match=r"shape \(series, time, feature\)"):
        from_arrays({"X": X[0]})
    with pytest.raises(ValueError, match=r"`time_points` must have shape \(2,\) or \(2, 2\)"):
        from_arrays({"X": X, "time_points": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"name the 2 features"):
        from_arrays({"X": X}, names=["one"])
    with pytest.raises(ValueError, match=r"`time_points` must be numbers, got datetime64\[D\]"):
        from_arrays({"X": X, "time_points": np.array(["2024-01-01", "2024-01-02"], "M8[D]")})


def test_a_forgotten_id_is_what_the_sentence_is_about():
    frame = pd.DataFrame({"who": [1, 1, 2], "t": [0, 1, 0], "x": [1.0, 2.0, 3.0]})
    with pytest.raises(
        ValueError, match=r"repeated times, the first in series 0 at time 0.*tells them apart with `id`"
    ):
        from_table(frame, id=None, time="t")
    with pytest.raises(ValueError, match=r"'who' .'a' in row 1.*tells them apart with `id`"):
        from_table(frame.assign(who=["a", "a", "b"], t=[0, 1, 2]), id=None, time="t")


def test_the_first_entry_that_is_no_number_is_named():
    frame = pd.DataFrame({"who": [1, 1, 2], "t": [0, 1, 0], "x": ["1", "<5", "2"]})
    with pytest.raises(ValueError, match=r"'x' .'<5' in row 2"):
        from_table(frame, id="who", time="t")


@pytest.mark.parametrize("written", [int, float, str])
def test_dates_of_eight_digits_are_not_taken_for_numbers(written):
    frame = pd.DataFrame({"day": [written(day) for day in (20240131, 20240201)], "x": [1.0, 2.0]})
    with pytest.raises(ValueError, match="'day' must hold dates like 2024-01-31: 20240131 would count as a number"):
        from_table(frame, id=None, time="day")
    assert from_table(frame.assign(day=[20240131, 20240232]), id=None, time="day").times[0] == 20240131  # no date


def test_blank_lines_are_no_rows_and_two_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "blank.csv").write_text("who,t,x\na,0,1\n\na,1,2\n,,\n")
    assert from_table(tmp_path / "blank.csv", id="who", time="t").times.tolist() == [0.0, 1.0]
    (tmp_path / "twice.csv").write_text("who,t,x,x\na,0,1,2\n")
    with pytest.raises(ValueError, match="two columns of one name: 'x' is there twice"):
        from_table(tmp_path / "twice.csv", id="who", time="t")


@pytest.mark.parametrize(("separator", "decimal"), [(";", ","), (";", "."), ("\t", ","), ("\t", "."), (",", ".")])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_spreadsheets_of_other_countries(tmp_path, separator, decimal, ending):
    frame = pd.DataFrame({"id": ["a", "a", "b"], "t": [0.5, 1.25, 2.0], "x": [1.5, None, -3.25], "y": [1, 2, 3]})
    frame.to_csv(tmp_path / f"t{ending}", sep=separator, decimal=decimal, index=False)
    found, expected = (from_table(source, id="id", time="t") for source in (tmp_path / f"t{ending}", frame))
    for name in ("times", "values", "mask"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (["1,5", "10.098"], 3),
        (["10.098", "1,5"], 2),
        (["1,5"] * 2000 + ["-1.234.567"], 2002),  # beyond what is looked at first
        (["1,5", "9.5", "10.098"], 4),
        (["10.098", "12.345"], 2),  # the decimal commas are in another column
    ],
)
def test_a_point_that_may_stand_between_thousands_is_refused(tmp_path, cells, line):
    rows = "".join(f"{k};{cell};0,5\n" for k, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text("t;x;y\n" + rows)
    with pytest.raises(ValueError, match=rf"column 'x' must have no points.*: line {line} has "):
        from_table(tmp_path / "t.csv", id=None, time="t")


def test_a_point_that_can_only_be_a_decimal_point_is_read(tmp_path):
    (tmp_path / "t.csv").write_text("t;x;y\n0;10.098;0,5\n1;9.5;0,125\n2;0.125;1\n")
    series = from_table(tmp_path / "t.csv", id=None, time="t")
    assert series.values.tolist() == [[10.098, 0.5], [9.5, 0.125], [0.125, 1.0]]


def test_a_table_in_another_encoding_is_called_so(tmp_path):
    for text in ("t,Größe\n0,1\n", "t,x,note\n0,1,größer\n"):
        (tmp_path / "latin.csv").write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError, match="not written in UTF-8"):
            from_table(tmp_path / "latin.csv", id=None, time="t")


def test_nanoseconds_over_centuries():
    stamps = pd.to_datetime(["1900-01-01", "1901-01-01", "2262-04-01"]).astype("datetime64[ns]")
    series = from_table(pd.DataFrame({"t": stamps, "x": [1.0, 2.0, 3.0]}), id=None, time="t", unit="D")
    assert series.times.tolist() == [0, 365, (dt.date(2262, 4, 1) - dt.date(1900, 1, 1)).days]


@pytest.mark.parametrize("name", ["x.csv.gz", "x.parquet"])
def test_a_damaged_file_is_refused_in_one_sentence_wherever_the_damage_is(tmp_path, name):
    """Some damage makes polars panic, which is no `Exception`."""
    path = tmp_path / name
    frame = pl.DataFrame({"t": [0.0, 1.0, 2.0, 2.5], "x": [1.0, None, 3.0, 4.0]})
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(frame.write_csv().encode(), mtime=0))
    else:
        frame.write_parquet(path, statistics=False)
    whole, refused = path.read_bytes(), 0
    damages = [whole[:k] + bytes([255 - whole[k]]) + whole[k + 1 :] for k in range(len(whole))]
    for damaged in (*damages, *(whole[:k] for k in range(0, len(whole), 7))):
        path.write_bytes(damaged)
        try:
            from_table(path, id=None, time="t")
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 500
    assert refused > len(whole) / 4
