"""The page of a table in a real browser, opened from disk. `tests/reporting/browser.py` says how to install one."""

import copy
import re
from base64 import b64decode

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
from cru.forecaster.view_data import collect
from cru.reporting.view_page import encode_curves, render_view
from tests.forecaster.conftest import stations
from tests.reporting.browser import check_small_screen_and_dark_mode
from tests.reporting.test_report_browser import axis

pytestmark = pytest.mark.slow

EVIL = '"><img src=x onerror="document.title=1"></script><script>document.title = "taken"</script><!-- \' &amp;'
EVIL += "\x00\x1b\u202e"


@pytest.fixture(scope="module")
def forecaster():
    return Forecaster("structural", progress=False).fit(stations(), id="station", time="date")


@pytest.fixture(scope="module")
def collected(forecaster):
    """The data of the page, with components and anomalies that are made up."""
    data = collect(forecaster)
    for number, series in enumerate(data["series"]):
        series |= {"surprise": number % 7 / 10, "anomalies": number % 5}
        for one in series["data"]["variables"]:
            points = len(b64decode(one["curves"]["code"])) // 10  # five curves of 16 bits
            wave = np.sin(np.arange(points) / 9.0)
            one["components"] = [
                {"name": name, **encode_curves((size * wave)[None])} for name, size in (("level", 3.0), ("year", 1.0))
            ]
        series["data"]["variables"][0]["anomalies"] = [[4, 7.5, 0.0003]]
    return data


@pytest.fixture
def data(collected):
    return copy.deepcopy(collected)


def written(data, tmp_path):
    path = tmp_path / "view.html"
    path.write_text(render_view(data), encoding="utf-8")
    return path


def key(page, name, *, shift=False):
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, modifiers=8 if shift else 0)
    page.frame()


LABEL = "document.querySelector('#explorer svg[role=img]').getAttribute('aria-label')"
RANGE = "[...document.querySelectorAll('#explorer .name')].map(t => t.textContent).find(t => t.startsWith('date'))"
OPEN = "document.querySelector('#facts b').textContent"


def shown_days(page):
    """The dates that the charts show, as the name of their axis states them."""
    found = re.search(r"(\S+) to (\S+)$", page.run(RANGE))
    return pd.Timestamp(found[1]), pd.Timestamp(found[2])


def test_the_chart_stands_at_the_numbers_of_the_model(page, data, forecaster, tmp_path):
    page.open(written(data, tmp_path))
    y = axis(page, "#explorer figure:first-child", "data-y")
    drawn = page.run("document.querySelector('#explorer path[data-line=mean]').getAttribute('d')")
    pixels = [float(pair.split(",")[1]) for pair in re.findall(r"[ML]([-\d.]+,[-\d.]+)", drawn)]
    dots = page.run("document.querySelector('#explorer path[data-dots=observation]').getAttribute('d')")
    table = stations()
    own = table[table["station"] == "s00"].sort_values("date")
    seen = [y(float(pixel)) for pixel in re.findall(r",([-\d.]+)h0", dots)]
    np.testing.assert_allclose(seen, own["high"], atol=0.01 * np.ptp(own["high"]))
    said = forecaster.predict(own, at=[own["date"].iloc[-1]])
    last = said[said["variable"] == "high"]["mean"].iloc[0]
    assert y(pixels[-1]) == pytest.approx(last, abs=0.01 * np.ptp(own["high"]))


def test_a_series_can_be_chosen(page, data, tmp_path):
    page.open(written(data, tmp_path))
    first = page.run(LABEL)
    assert page.run(OPEN) == "s00" and "high of s00: 30 observations" in first
    page.click('#explorer button[aria-label="Next series"]')
    assert page.run(OPEN) == "s01" and page.run(LABEL) != first
    page.run(
        "(s => { s.value = 7; s.dispatchEvent(new Event('change')); })(document.querySelector('#explorer select'))"
    )
    assert page.run(OPEN) == "s07"
    page.click('#explorer input[type="search"]')
    page.call("Input.insertText", text="S1")
    page.frame()
    found = page.run("[...document.querySelectorAll('#explorer option')].map(o => o.textContent)")
    assert found == [f"s{k}" for k in range(10, 20)]
    key(page, "Enter")
    assert page.run(OPEN) == "s10"


def test_variables_and_components_can_be_chosen(page, data, tmp_path):
    page.open(written(data, tmp_path))
    titles = "[...document.querySelectorAll('#explorer h3')].map(t => t.textContent)"
    charts = "document.querySelectorAll('#explorer figure').length"
    pressed = "[...document.querySelectorAll('#explorer .tabs button')].map(b => b.getAttribute('aria-pressed'))"
    assert page.run(titles) == ["high", "low"] and page.run(pressed)[:2] == ["true", "true"]
    page.click("#explorer .tabs button")
    assert page.run(titles) == ["low"] and page.run(pressed)[:2] == ["false", "true"]
    before = page.run(charts)
    page.click("#components")
    assert {before, page.run(charts)} == {1, 3}
    page.click('#explorer button[aria-label="Next series"]')
    assert page.run(titles) == ["low"]  # the choice stays


def test_the_mouse_zooms_and_pans(page, data, tmp_path):
    page.open(written(data, tmp_path))
    whole = shown_days(page)
    place = page.place("#explorer .plot svg")
    middle = (place["left"] + place["right"]) / 2

    def drag(start, stop, **more):
        page.mouse("mouseMoved", start, place["y"])
        page.mouse("mousePressed", start, place["y"], button="left", clickCount=1, **more)
        for step in np.linspace(start, stop, 12):
            page.mouse("mouseMoved", float(step), place["y"], button="left", buttons=1, **more)
        page.mouse("mouseReleased", stop, place["y"], button="left", clickCount=1, **more)
        page.frame()

    drag(middle - 100, middle + 100)
    zoomed = shown_days(page)
    assert zoomed[0] > whole[0] and zoomed[1] < whole[1]
    drag(middle, middle + 150, modifiers=8)  # shift
    moved = shown_days(page)
    assert moved[0] < zoomed[0] and moved[1] < zoomed[1]
    assert abs((moved[1] - moved[0]) - (zoomed[1] - zoomed[0])).days <= 1
    page.mouse("mouseWheel", middle, place["y"], deltaX=0, deltaY=-120, modifiers=2)  # control
    page.frame()
    assert shown_days(page)[1] - shown_days(page)[0] < moved[1] - moved[0]
    page.click('#explorer .tools button[aria-label="Whole range"]')
    assert shown_days(page) == whole


def test_buttons_zoom_and_pan(page, data, tmp_path):
    page.open(written(data, tmp_path))
    whole = shown_days(page)
    page.click('.tools button[aria-label="Zoom in"]')
    page.click('.tools button[aria-label="Zoom in"]')
    zoomed = shown_days(page)
    page.click('.tools button[aria-label="Later"]')
    assert shown_days(page)[0] > zoomed[0]
    page.click('.tools button[aria-label="Earlier"]')
    assert shown_days(page) == zoomed
    for _ in range(3):
        page.click('.tools button[aria-label="Zoom out"]')
    assert shown_days(page) == whole


def test_two_fingers_zoom_and_one_pans(page, data, tmp_path):
    page.set_viewport(width=390, height=800, phone=True)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    page.open(written(data, tmp_path))
    whole, place = shown_days(page), page.place("#explorer .plot svg")

    def touch(kind, *fingers):
        points = [{"x": place["x"] + dx, "y": place["y"], "id": k} for k, dx in enumerate(fingers)]
        page.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", -20, 20)
    for apart in (30, 50, 70, 90):
        touch("touchMove", -apart, apart)
    page.frame()
    touch("touchEnd")
    zoomed = shown_days(page)
    assert zoomed[1] - zoomed[0] < 0.5 * (whole[1] - whole[0])
    touch("touchStart", 0)
    for dx in (10, 30, 60):
        touch("touchMove", dx)
    page.frame()
    touch("touchEnd")
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)
    assert shown_days(page)[0] < zoomed[0]


def test_keys_zoom_pan_and_show_values(page, data, tmp_path):
    page.open(written(data, tmp_path))
    whole = shown_days(page)
    page.run("document.querySelector('#explorer .plot svg').focus()")
    key(page, "+")
    key(page, "+")
    zoomed = shown_days(page)
    assert zoomed[1] - zoomed[0] < 0.3 * (whole[1] - whole[0])
    key(page, "ArrowRight", shift=True)
    assert shown_days(page)[0] > zoomed[0]
    key(page, "Escape")
    assert shown_days(page) == whole
    key(page, "Home")
    first = page.run("document.querySelector('#explorer .tip').textContent")
    key(page, "ArrowRight")
    assert page.run("document.querySelector('#explorer .tip').textContent") != first
    table = stations()
    own = table[table["station"] == "s00"].sort_values("date")
    assert first.strip().startswith(str(own["date"].iloc[0].date()))
    assert f"observation{own['high'].iloc[0]:.3g}" in first


def test_the_pointer_shows_numbers_and_anomalies(page, data, tmp_path):
    page.open(written(data, tmp_path))
    drawn = page.run("document.querySelector('#explorer path[data-dots=anomaly]').getAttribute('d')")
    x, y = map(float, re.match(r"M([-\d.]+),([-\d.]+)h0", drawn).groups())
    place = page.place("#explorer .plot svg")
    page.mouse("mouseMoved", place["left"] + x, place["top"] + y)
    page.frame()
    text = page.run("document.querySelector('#explorer .tip').textContent")
    assert "anomaly" in text and "expected 7.5, p 0.0003" in text
    assert "observation" in text and "mean" in text and re.search(r"90 %−?\d+\.?\d* to ", text)
    assert "1 anomaly." in page.run(LABEL)


def test_the_map_sorts_and_opens_series(page, data, tmp_path):
    page.open(written(data, tmp_path))
    for measure in ("gap", "error", "surprise", "anomalies", "count"):
        page.run(
            f"(s => {{ s.value = '{measure}'; s.dispatchEvent(new Event('change')); }})"
            "(document.querySelector('#gaps select'))"
        )
        ordered = page.run("[...document.querySelectorAll('#explorer option')].map(o => o.textContent)")
        values = {one["id"]: one[measure] for one in data["series"]}
        found = [values[name] for name in ordered]
        assert found == sorted(found, reverse=measure != "count")
    place = page.place(".map")
    height = page.run("document.querySelector('.map .scroll-area').offsetHeight") / 24
    page.run("document.querySelector('.map').scrollTop = 0")
    page.mouse("mouseMoved", place["x"], place["top"] + 2.5 * height)
    page.frame()
    assert page.run("document.querySelector('#gaps .tip b').textContent") == ordered[2]
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, place["x"], place["top"] + 2.5 * height, button="left", clickCount=1)
    page.frame()
    assert page.run(OPEN) == ordered[2]
    page.run("document.querySelector('.map').focus()")
    key(page, "ArrowDown")
    assert page.run("document.querySelector('#gaps [aria-live]').textContent").startswith(f"{ordered[3]}: ")
    key(page, "Enter")
    assert page.run(OPEN) == ordered[3]


def test_the_map_is_dark_where_observations_are(page, data, tmp_path):
    page.open(written(data, tmp_path))
    pixels = page.run(
        "(c => { const row = c.height / 24 * devicePixelRatio, d = c.getContext('2d'); "
        "const all = d.getImageData(0, Math.round(row / 2), c.width, 1).data; "
        "return Array.from({length: c.width}, (_, k) => all[4 * k + 3]); })(document.querySelector('.map canvas'))"
    )
    days = stations().query("station == 's00'")["date"]
    span, dark = (days - days.min()).dt.days, np.flatnonzero(np.array(pixels[130:]) > 60) + 130
    left, right = dark.min(), dark.max()
    ends = (stations()["date"].max() - stations()["date"].min()).days
    assert (right - left) / (pixels.__len__() - 120 - 18) == pytest.approx(span.max() / ends, abs=0.05)
    longest = span.sort_values().diff().max()
    assert np.diff(dark).max() / (right - left) == pytest.approx(longest / span.max(), abs=0.1)


def test_the_quality_of_the_model(page, data, tmp_path):
    row = {"variable": "high", "count": 500, "model": 0.3, "structural": 0.1, "last-value": 0.4, "linear": 0.35}
    data["scores"]["table"] = [row | {"lead": "same time"}, row | {"lead": "up to 4 gaps", "linear": 0.25}]
    data["scores"]["coverage"] = [
        {"lead": lead, "count": 90, "level": level, "coverage": level / 110}
        for lead in ("all", "same time", "up to 4 gaps")
        for level in (50, 80, 90, 95)
    ]
    page.open(written(data, tmp_path))
    text = page.run("document.querySelector('#losses').textContent")
    assert re.search(r"median gap[\d.]+ (day|hour)", page.run("document.querySelector('#training').textContent"))
    assert "better in 1 of 2 rows" in text and "linear has 0.250, the model 0.300" in text and "same time" not in text
    table = page.run("document.querySelector('#score-table').textContent")
    assert "0.400" in table and table.count("▼") == 1 and "up to 4 gaps (" in table
    page.run("document.querySelector('#quality').id = 'quality'")
    labels = page.run("[...document.querySelectorAll('#quality [role=img]')].map(n => n.getAttribute('aria-label'))")
    assert len(labels) == 3 and "90 % interval: 2 points, from 0.8182" in labels[2]


def test_few_values_have_no_scores(page, data, tmp_path):
    data["scores"] |= {"table": [], "coverage": []}
    del data["scores"]["coverage90"]
    page.open(written(data, tmp_path))
    assert "too few withheld values" in page.run("document.querySelector('#quality').textContent")


def test_a_series_without_details(page, data, tmp_path):
    data["series"][1]["data"] = None
    data["series"][2] |= {"data": None, "count": 0, "first": None, "last": None, "gap": None, "error": None}
    page.open(written(data, tmp_path))
    page.click('#explorer button[aria-label="Next series"]')
    assert "no curves of this series" in page.run("document.querySelector('#explorer').textContent")
    page.click('#explorer button[aria-label="Next series"]')
    assert "has no observations" in page.run("document.querySelector('#explorer').textContent")
    page.click('#explorer button[aria-label="Next series"]')
    assert page.run(OPEN) == "s03" and page.run("document.querySelectorAll('#explorer figure').length") > 0


def test_one_series_with_numbers_as_times(page, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"hour": np.cumsum(rng.exponential(1, 80)), "load": rng.normal(size=80)})
    forecaster = Forecaster("last-value", progress=False).fit(frame, time="hour")
    page.open(forecaster.view(out=tmp_path / "view.html"))
    assert page.run("document.querySelectorAll('#gaps, #explorer select').length") == 0
    ticks = page.run("[...document.querySelectorAll('#explorer text[data-x]')].map(t => t.textContent)")
    steps = np.diff([float(text) for text in ticks])
    assert len(ticks) > 3 and steps.min() > 0 and steps.min() == pytest.approx(steps.max())


@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "Asia/Tokyo"])
def test_times_of_day_are_those_of_the_zone(page, tmp_path, zone):
    hours = pd.date_range("2024-03-30", periods=72, freq="h", tz="UTC")  # clocks change in Berlin
    times = hours.tz_convert(zone) if zone else hours.tz_localize(None)
    frame = pd.DataFrame({"time": times, "load": np.sin(np.arange(72.0))})
    page.open(Forecaster("last-value", progress=False).fit(frame, time="time").view(out=tmp_path / "view.html"))
    page.run("document.querySelector('#explorer .plot svg').focus()")
    for number in (0, 1):
        key(page, "Home" if number == 0 else "End")
        text = page.run("document.querySelector('#explorer .tip b').textContent").strip()
        wanted = times[0] if number == 0 else times[-1] + pd.Timedelta("7.1h")
        assert text == wanted.strftime("%Y-%m-%d %H:%M")


def test_hostile_names_are_text(page, tmp_path):
    table = stations(6, 25).rename(columns={"high": EVIL, "station": "x" + EVIL, "date": "d" + EVIL})
    table["x" + EVIL] += EVIL
    model = Forecaster("last-value", progress=False).fit(table, id="x" + EVIL, time="d" + EVIL)
    page.open(model.view(out=tmp_path / "view.html"))
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.frame()
    plain = EVIL.replace("\x00", "\\x00").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert page.run(OPEN) == "s00" + plain
    assert page.run("document.querySelector('#explorer .tabs button').textContent") == plain[:33] + "…"
    assert plain in page.run("document.querySelector('#training').textContent")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.title") == page.run("document.querySelector('h1').textContent") != "taken"


def test_everything_can_be_read_without_eyes(page, data, tmp_path):
    page.open(written(data, tmp_path))
    labels = page.run("[...document.querySelectorAll('[role=img]')].map(node => node.getAttribute('aria-label'))")
    assert len(labels) > 5 and all(re.search(r"\d", label) for label in labels), labels
    nameless = "[...document.querySelectorAll('button, select, input')].filter(n => !n.textContent && !n.ariaLabel)"
    assert page.run(f"{nameless}.length") == 0
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.frame()
    table = stations()
    own = table[table["station"] == "s00"].sort_values("date")
    text = page.run("document.querySelector('#explorer table').textContent")
    assert f"{own['high'].iloc[0]:.1f}" in text and "90 %" in text and "level" in text
    rows = page.run("[...document.querySelectorAll('#gaps tbody tr')].map(r => r.textContent)")
    assert len(rows) == 24 and rows[3].startswith("s03")
    page.run("document.querySelectorAll('#gaps tbody button')[5].click()")
    assert page.run(OPEN) == "s05"


def test_a_small_screen_and_dark_mode(page, data, tmp_path):
    check_small_screen_and_dark_mode(page, written(data, tmp_path))
    page.set_viewport(width=390, height=800, phone=True)
    assert page.run("document.querySelector('#score-caption').getBoundingClientRect().right") <= 390


def test_a_script_that_is_put_into_the_page_does_nothing(page, data, tmp_path):
    path = written(data, tmp_path)
    text = path.read_text(encoding="utf-8").replace("<body>", "<body><script>document.title = 'taken'</script>")
    path.write_text(text, encoding="utf-8")
    page.open(path)
    assert page.run("document.title") != "taken" and page.run(OPEN) == "s00"
    page.complaints.clear()


def processor_time(page):
    """Processor time of the page so far, in milliseconds."""
    metrics = {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}
    return 1000 * metrics["TaskDuration"]


def test_a_thousand_series(page, tmp_path, capsys):
    """1 000 series with 500 observations: the page is below 20 MB. The times are printed, because machines differ."""
    rng = np.random.default_rng(0)
    days = np.sort(rng.permuted(np.tile(np.arange(730), (1000, 1)), axis=1)[:, :500], 1)
    wave = 15 + 8 * np.sin(2 * np.pi * days / 365 + rng.uniform(0, 1, (1000, 1)))
    table = pd.DataFrame(
        {
            "station": np.arange(1000).repeat(500),
            "date": pd.Timestamp("2022-01-01") + pd.to_timedelta(days.ravel(), unit="D"),
            "tmax": (wave + rng.normal(0, 2, days.shape)).round(1).ravel(),
            "tmin": (wave - 6 + rng.normal(0, 2, days.shape)).ravel(),
        }
    )
    few = table[table["station"] < 30]
    path = (
        Forecaster("structural", progress=False)
        .fit(few, id="station", time="date")
        .view(table, out=tmp_path / "v.html")
    )
    size = path.stat().st_size / 1e6
    assert 5 < size < 20
    page.call("Performance.enable", timeDomain="threadTicks")
    page.open(path)
    drawn = page.run("performance.getEntriesByType('paint')[0]?.startTime ?? performance.now()")
    opened = processor_time(page)
    change = page.run(
        "(async () => { const next = document.querySelector('[aria-label=\"Next series\"]'), taken = []; "
        "for (let k = 0; k < 5; k++) { const start = performance.now(); next.click(); "
        "await new Promise(done => requestAnimationFrame(() => setTimeout(done, 0))); "
        "taken.push(performance.now() - start); } return taken; })()"
    )
    changed = (processor_time(page) - opened) / 5
    page.call("Performance.disable")
    with capsys.disabled():
        print(
            f"\n{size:.1f} MB, first drawing after {drawn:.0f} ms (processor time {opened:.0f} ms), "
            f"a new series after {sorted(change)[2]:.0f} ms (processor time {changed:.0f} ms)"
        )
    assert page.run(OPEN) == "5" and "at most" in page.run("document.querySelector('#training').textContent")
