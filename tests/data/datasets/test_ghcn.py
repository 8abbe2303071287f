import gzip
from pathlib import Path

import numpy as np
import pytest

from cru.data.datasets import ghcn
from tests.data.raw_formats import dly_line, tar_of

YEARS = range(1990, 1992)


def parse(text, elements=("PRCP", "TMAX")):
    return ghcn.parse([("x.dly", text.encode())], elements, YEARS)


def test_values_flags_and_missing():
    lines = [
        dly_line("USC00000001", 1990, 1, "TMAX", {1: (215, " "), 2: (-33, " "), 3: (50, "X"), 31: (0, " ")}),
        dly_line("USC00000001", 1991, 2, "TMAX", {28: (7, " "), 31: (99, " ")}),
        dly_line("USC00000001", 1990, 1, "WIND", {1: (1, " ")}),
        dly_line("USC00000002", 1991, 12, "PRCP", {31: (12345, " ")}),
        dly_line("USC00000002", 1950, 1, "PRCP", {1: (1, " ")}),
        dly_line("USC00000002", 2020, 1, "PRCP", {1: (1, " ")}),
    ]
    grid = parse("".join(line + "\n" for line in lines))
    assert grid.stations == ["USC00000001", "USC00000002"] and grid.values.shape == (2, 730, 2)
    tmax = grid.values[0, :, 1]
    assert tmax[[0, 1, 30]].tolist() == [215, -33, 0]
    assert np.isnan(tmax[2]), "a quality flag drops the value"
    assert tmax[365 + 58] == 7
    assert (~np.isnan(grid.values)).sum() == 5, "31 February does not exist"
    assert grid.values[1, 729, 0] == 12345


def test_lines_may_have_lost_blanks_at_the_end_but_no_more():
    line = dly_line("USC00000001", 1990, 1, "TMAX", {1: (215, " ")})
    assert len(line) == 269
    for text in (line.rstrip() + "\n", line + "\r\n", line):
        assert parse(text).values[0, 0, 1] == 215
    with pytest.raises(ValueError, match=r"x.dly must hold .dly lines of 269 characters: line 2 has 120"):
        parse(line + "\n" + line[:120] + "\n")


def test_text_that_is_no_dly_is_refused():
    line = dly_line("USC00000001", 1990, 1, "TMAX", {1: (215, " ")})
    with pytest.raises(ValueError, match=r"number in columns 12-15"):
        parse(line.replace("1990", "199x") + "\n")
    with pytest.raises(
        ValueError, match=r"x.dly must .* number in columns 16-17: line 2 begins with 'USC000000011990 1"
    ):
        parse(line + "\n" + line.replace("199001", "1990 1") + "\n")
    with pytest.raises(ValueError, match=r"31 integers: the one that begins with 'USC00000001199001TMAX'"):
        parse(line.replace("  215", "21.5 ") + "\n")
    with pytest.raises(ValueError, match=r"there is none"):
        parse("")


@pytest.mark.parametrize("month", [0, 13, 99])
def test_a_month_that_does_not_exist_says_where(month):
    good = dly_line("USC00000001", 1991, 1, "TMAX", {1: (215, " ")})
    other = dly_line("USC00000001", 1991, 1, "WIND", {1: (215, " ")})
    bad = dly_line("USC00000001", 1991, month, "TMAX", {1: (215, " ")})
    with pytest.raises(ValueError, match=rf"x.dly must .* month from 1 to 12 in columns 16-17: line 3 has {month}\."):
        parse("".join(line + "\n" for line in (good, other, bad, good)))


def test_an_archive_a_gzip_and_a_folder_hold_the_same(tmp_path: Path):
    line = dly_line("USC00000001", 1990, 1, "TMAX", {1: (215, " ")}) + "\n"
    (tmp_path / "ghcnd_hcn.tar.gz").write_bytes(
        tar_of({"ghcnd_hcn/USC00000001.dly": line, "ghcnd_hcn/readme.txt": "?"})
    )
    (tmp_path / "all.dly.gz").write_bytes(gzip.compress(line.encode()))
    (tmp_path / "USC00000001.dly").write_text(line)
    texts = [[text for _, text in ghcn.contents([path])] for path in sorted(tmp_path.iterdir())]
    assert texts == [[line.encode()]] * 3


def test_truncated_and_foreign_archives_are_one_sentence(tmp_path: Path):
    line = dly_line("USC00000001", 1990, 1, "TMAX", {1: (215, " ")}) + "\n"
    whole = gzip.compress(line.encode() * 200)
    for name, content in (
        ("a.dly.gz", whole[:-20]),
        ("b.dly.gz", b"not gzip"),
        ("c.tar.gz", tar_of({"x.dly": line})[:80]),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=rf"{name} must be a complete gzip archive, but it is truncated or damaged"
        ):
            list(ghcn.contents([path]))
