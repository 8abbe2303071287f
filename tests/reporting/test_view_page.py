"""The page of a table as text: what is encoded can be decoded, and what is thinned out keeps its shape."""

import base64
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cru.reporting.svg import SeriesFigure, draw_series
from cru.reporting.view_page import (
    SETTINGS,
    Detail,
    SeriesView,
    TimeAxis,
    VariableView,
    choose_curve_times,
    choose_detail,
    encode_bins,
    encode_curves,
    encode_series,
    encode_values,
    render_view,
    thin_observations,
)

sensible = st.floats(-1e9, 1e9, allow_nan=False, width=32)


def decoded(code: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(code), kind)


def values_of(encoded: dict) -> np.ndarray:
    """What the script makes of encoded observations."""
    if "step" not in encoded:
        return decoded(encoded["code"], "<f4").astype(float)
    return encoded["low"] + encoded["step"] * decoded(encoded["code"], "<u2").astype(float)


@given(st.lists(st.integers(-30_000, 30_000), min_size=1, max_size=30), st.integers(0, 4))
def test_observations_with_few_decimals_are_exact(numbers, decimals):
    values = np.array(numbers) / 10**decimals
    assert np.round(values_of(encode_values(values)), decimals).tolist() == np.round(values, decimals).tolist()


@given(arrays(float, st.integers(1, 30), elements=sensible))
def test_other_observations_are_floats(values):
    np.testing.assert_allclose(values_of(encode_values(values)), values, rtol=1e-6, atol=1e-4)


def test_no_observations():
    assert encode_values(np.empty(0))["code"] == ""


@given(arrays(float, (3, 8), elements=st.one_of(sensible, st.just(np.nan))))
def test_curves_are_exact_to_a_part_of_their_range(curves):
    encoded = encode_curves(curves)
    parts = decoded(encoded["code"], "<u2").reshape(curves.shape).astype(float)
    assert ((parts == SETTINGS.missing) == np.isnan(curves)).all()
    found = np.where(parts == SETTINGS.missing, np.nan, encoded["low"] + encoded["step"] * parts)
    size = np.nan_to_num(np.nanmax(curves) - np.nanmin(curves)) if np.isfinite(curves).any() else 1.0
    np.testing.assert_allclose(found, curves, rtol=1e-7, atol=1e-4 * size)


@given(arrays(float, 12, elements=st.floats(0, 1e5)))
def test_times_are_exact_to_a_part_of_the_axis(times):
    axis = TimeAxis.of(-5.0, 2e5)
    found = axis.first + axis.tick * decoded(axis.ticks(times), "<u4")
    np.testing.assert_allclose(found, times, atol=1e-4)


def test_the_density_of_observations():
    times = np.concatenate([np.linspace(0, 2.4, 30), [10.0]])
    density = decoded(encode_bins(times, 4, 10.0), np.uint8)
    assert density[0] == 255 and density[1] == density[2] == 0 and 0 < density[3] < 255
    assert decoded(encode_bins(np.empty(0), 4, 10.0), np.uint8).tolist() == [0, 0, 0, 0]


@given(arrays(float, st.integers(1, 300), elements=sensible), st.integers(8, 60))
def test_thinning_keeps_the_extremes(values, most):
    kept = thin_observations(values, most)
    assert kept.sum() <= most and kept[0] and kept[-1]
    assert values[kept].max() == values.max() and values[kept].min() == values.min()


@given(
    arrays(float, st.integers(1, 400), elements=st.floats(0, 1e4), unique=True).map(np.sort),
    st.integers(*SETTINGS.curve_points),
    st.booleans(),
)
def test_the_times_of_curves(times, points, causal):
    found = choose_curve_times(times, 50.0, points, causal=causal)
    assert len(found) <= points and (np.diff(found) > 0).all()
    assert found[0] == times[0] and found[-1] == times[-1] + 50.0
    assert times[-1] in found and (found > times[-1]).sum() >= 8


def test_a_long_gap_gets_points():
    times = np.concatenate([np.arange(10.0), 1000 + np.arange(10.0)])
    found = choose_curve_times(times, 10.0, 60, causal=False)
    inside = found[(found > 9) & (found < 1000)]
    assert set(times) <= set(found) and len(inside) > 20 and np.diff(inside).max() < 60
    assert len(choose_curve_times(np.empty(0), 10.0, 60, causal=False)) == 0


def whole_series(rows: int, variables: int, detail: Detail) -> SeriesView:
    rng = np.random.default_rng(0)
    kept, points = np.arange(min(rows, detail.observations)), detail.curve_points(rows)
    one = [
        VariableView(k, kept, rng.normal(size=len(kept)), rng.normal(size=(5, points)), np.empty((0, 2)))
        for k in range(variables)
    ]
    return SeriesView("a", np.arange(len(kept), dtype=float), np.arange(points, dtype=float), 1.0, one)


@pytest.mark.parametrize(
    ("series", "rows", "variables"), [(1000, 500, 1), (1000, 500, 6), (30, 50, 2), (200, 60, 40), (4000, 500, 3)]
)
def test_the_chosen_detail_fits(series, rows, variables):
    lengths, counts = np.full(series, rows), np.full((series, variables), rows)
    detail, kept = choose_detail(lengths, counts, curves=5, size=15_000_000)
    one = len(json.dumps(encode_series(whole_series(rows, variables, detail), TimeAxis.of(0.0, 600.0))))
    assert kept * one < 15_500_000 and SETTINGS.curve_points[0] <= detail.points <= SETTINGS.curve_points[1]
    assert kept == series or detail.points == SETTINGS.curve_points[0]  # series are left out last
    if detail.points < SETTINGS.curve_points[1]:
        assert kept * one > 8_000_000  # nothing is left out without need


DATA = {"title": "x", "series": [], "names": [], "scores": {"table": [], "coverage": []}}


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--", "{{script}}", "\ud800", "\x00\u202e"])
def test_hostile_texts_in_a_page(text):
    page = render_view(DATA | {"title": text, "names": [text]})
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert json.loads(found[1])["names"] == [text]
    assert page.count("<script") == 2 and page.count("<title>") == 1 and page.encode()


def test_the_page_names_nothing_outside_itself():
    page = render_view(DATA)
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}
    assert (
        "default-src 'none'" in page
        and "base-uri 'none'; form-action 'none'" in page
        and "unsafe" not in page
        and "innerHTML" not in page
        and "eval(" not in page
    )
    assert not re.search(r"<[^>]+\s(style|on\w+)=", page)


def figure(**changes) -> SeriesFigure:
    times = np.linspace(0.0, 10.0, 21)
    mean = np.sin(times)
    plain = SeriesFigure(
        "a", times[:16], mean[:16], times, mean, {90.0: (mean - 1, mean + 1)}, 7.5, ("first", "last", "end")
    )
    return plain._replace(**changes)


def test_the_figure_stands_at_its_numbers():
    drawn = draw_series(figure())
    ticks = [
        (float(y) - 4, float(text.replace("−", "-")))
        for y, text in re.findall(r'<text x="52.0" y="([\d.]+)"[^>]*>([^<]+)</text>', drawn)
    ]
    (y0, low), (y1, high) = ticks[0], ticks[-1]
    pixels = [float(pair.split(",")[1]) for pair in re.search(r'<polyline points="([^"]+)"', drawn)[1].split()]
    found = [low + (pixel - y0) / (y1 - y0) * (high - low) for pixel in pixels]
    np.testing.assert_allclose(found, figure().mean, atol=0.02)
    assert len(re.findall("h0", drawn)) == 16 and "first" in drawn and "end" in drawn


def test_the_figure_escapes_its_texts():
    drawn = draw_series(figure(title="<b>&\"'", labels=("<i>", "", "")))
    assert "<b>" not in drawn and "<i>" not in drawn and "&lt;b&gt;&amp;&quot;" in drawn


def test_a_constant_figure():
    flat = np.full(21, 3.0)
    assert "NaN" not in (drawn := draw_series(figure(mean=flat, bands={}, values=flat[:16]))) and "nan" not in drawn
