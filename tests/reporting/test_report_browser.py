"""The report page in a real browser, opened from disk. `tests/reporting/browser.py` says how to install one."""

import itertools
import json
import math
import re

import pytest

from cru.reporting import ledger, report_data
from cru.reporting.render import SIGNS
from cru.reporting.report_page import describe_series, limit_size, render
from tests.evaluation.handmade import weather
from tests.reporting.browser import check_small_screen_and_dark_mode

pytestmark = pytest.mark.slow

NAMES = ("PRCP", "SNOW", "SNWD", "TMAX", "TMIN")
EVIL = '"><img src=x onerror="document.title=1"></script><script>document.title = "taken"</script><!-- \' &amp;'


@pytest.fixture(scope="module")
def kept():
    return {}


@pytest.fixture
def data(pendulum_runs, kept):
    """Collected once; every test gets its own copy."""
    if "data" not in kept:
        kept["data"] = json.dumps(report_data.collect([pendulum_runs], series=3))
    return json.loads(kept["data"])


def written(data, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(data), encoding="utf-8")
    return path


def axis(page, selector, attribute):
    """Pixels to numbers, from the tick labels that a reader sees."""
    place = "x" if attribute == "data-x" else "y"
    ticks = page.run(
        f"[...document.querySelectorAll('{selector} text[{attribute}]')]"
        f".map(t => [Number(t.getAttribute('{place}')), Number(t.textContent.replace('−', '-').replace(' %', 'e-2'))])"
    )
    shift = 4 if place == "y" else 0  # text is set a little below its line
    (a, first), (b, last) = ([ticks[0][0] - shift, ticks[0][1]], [ticks[-1][0] - shift, ticks[-1][1]])
    steps = [later[1] - earlier[1] for earlier, later in itertools.pairwise(ticks)]
    if max(steps) < 1.01 * min(steps) or first <= 0:
        return lambda pixel: first + (pixel - a) / (b - a) * (last - first)
    return lambda pixel: math.exp(math.log(first) + (pixel - a) / (b - a) * math.log(last / first))


def test_dots_stand_at_the_scores_of_the_ledger(page, data, pendulum_runs, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    value = axis(page, "#dots", "data-x")
    dots = page.run(
        "[...document.querySelectorAll('#dots circle')].map(c => [c.dataset.run, Number(c.getAttribute('cx'))])"
    )
    entries = {entry["run"]: entry for entry in ledger.read(pendulum_runs / "ledger.jsonl")}
    assert len(dots) == 2
    for run, pixel in dots:
        assert value(pixel) == pytest.approx(entries[run]["scores"]["best"]["test"]["all"]["mse"], rel=0.01)


def test_learning_curves_go_through_the_numbers_of_the_log(page, data, pendulum_runs, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    page.run("document.querySelectorAll('figure')[1].id = 'curves'")
    x, y = axis(page, "#curves", "data-x"), axis(page, "#curves", "data-y")
    for name, folder in (("f-CRU", "regression-f-cru"), ("GRU-Δt", "regression-gru-dt")):
        path = page.run(f"document.querySelector('#curves path[data-line=\"{name}\"]').getAttribute('d')")
        drawn = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[ML]([-\d.]+,[-\d.]+)", path)]
        log = [json.loads(line) for line in (pendulum_runs / folder / "log.jsonl").read_text().splitlines()]
        assert [x(left) for left, _ in drawn] == pytest.approx([1, 2], abs=0.01)
        expected = [line["validation"]["all"]["mse"] for line in log]
        assert [y(top) for _, top in drawn] == pytest.approx(expected, rel=0.01)


def test_the_paper_beside_ours(page, data, tmp_path, pendulum_runs):
    entry = ledger.read(pendulum_runs / "ledger.jsonl")[0] | {"changed": [], "outdated": False, "older_settings": True}
    data["tables"] = report_data.describe_tables([entry])
    page.open(written(data, tmp_path))
    text = page.run("document.querySelector('#scores').textContent")
    mse = entry["scores"]["best"]["test"]["all"]["mse"] / 1e-3
    assert "6.155 ± 0.881" in text and f"{mse:.3f} (1)§" in text and "Table 2" in text and "Table 3" in text
    assert "▼: worse than the paper" in text and "→" not in text
    words = page.run("[...document.querySelectorAll('#scores td span')].map(n => [n.textContent.trim(), n.title])")
    assert words and all(SIGNS[sign] == title for sign, title in words)


def test_a_model_can_be_switched_off_and_on(page, data, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    count = "document.querySelectorAll('path[data-line=\"GRU-Δt\"]').length"
    before = page.run(count)
    assert before >= 4  # curves, calibration, gaps, the series
    page.click('.legend button[data-model="gru-dt"]')
    assert page.run(count) == 0 and page.run("document.querySelectorAll('#dots circle').length") == 1
    assert (
        page.run("document.querySelector('.legend button[data-model=\"gru-dt\"]').getAttribute('aria-pressed')")
        == "false"
    )
    page.click('.legend button[data-model="gru-dt"]')
    assert page.run(count) == before


def test_the_width_of_the_bands_can_be_chosen(page, data, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    levels = "[...document.querySelectorAll('#series select')].find(s => s.textContent.includes('interval'))"
    options = page.run(f"[...{levels}.options].map(o => [o.textContent, Number(o.value), o.selected])")
    assert [name for name, _, _ in options] == ["no interval", "50 % interval", "90 % interval"]
    assert [width for _, width, _ in options] == pytest.approx([0, 0.67449, 1.64485], abs=1e-5)
    assert [chosen for _, _, chosen in options] == [False, False, True]
    bands = "document.querySelectorAll('#series path.band').length"
    assert page.run(bands) > 0
    page.run(f"(s => {{ s.value = '0'; s.dispatchEvent(new Event('change')); }})({levels})")
    assert page.run(bands) == 0


def test_another_series_can_be_picked(page, data, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    chart = "document.querySelector('#series svg').getAttribute('aria-label')"
    first, ids = page.run(chart), [series["id"] for series in data["experiments"][1]["series"]]
    page.click('#series button[aria-label="Next series"]')
    second = page.run(chart)
    assert second != first
    shown = "(s => s.options[s.selectedIndex].textContent)(document.querySelector('#series select'))"
    assert page.run(shown) == ids[1]
    page.run("(s => { s.value = 2; s.dispatchEvent(new Event('change')); })(document.querySelector('#series select'))")
    assert page.run(shown) == ids[2] and page.run(chart) not in (first, second)
    assert page.run("document.querySelector('#series button[aria-label=\"Next series\"]').disabled")


def test_drag_zooms_all_charts_of_a_series_and_a_button_goes_back(page, data, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    numbers = "[...s.querySelectorAll('text[data-x]')].map(t => Number(t.dataset.x))"
    ticks = f"[...document.querySelectorAll('#series svg[role=img]')].map(s => {numbers})"
    whole = page.run(ticks)
    place = page.place("#series .plot svg")
    middle = (place["left"] + place["right"]) / 2
    page.mouse("mouseMoved", middle - 100, place["y"])
    page.mouse("mousePressed", middle - 100, place["y"], button="left", clickCount=1)
    for step in range(-90, 101, 10):
        page.mouse("mouseMoved", middle + step, place["y"], button="left", buttons=1)
    page.mouse("mouseReleased", middle + 100, place["y"], button="left", clickCount=1)
    page.frame()
    charts = page.run(ticks)
    assert len(charts) == 3 and charts[0] == charts[1] == charts[2]
    assert charts[0][-1] - charts[0][0] < 0.4 * (whole[0][-1] - whole[0][0])
    page.click("#series .reset")
    assert page.run(ticks) == whole


def test_the_pointer_shows_values(page, data, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    series = data["experiments"][1]["series"][0]
    place = page.place("#series .plot svg")
    page.mouse("mouseMoved", (place["left"] + place["right"]) / 2, place["y"])
    page.frame()
    text = page.run("document.querySelector('#series .tip').textContent")
    time = float(
        re.match(r"time ([\d.]+?)(?=\D|$)", text.replace("truth", " ").replace("f-CRU", " ").replace("GRU", " "))[1]
    )
    at = series["times"].index(time)
    run = next(run["id"] for run in data["runs"] if run["id"] in series["predictions"] and run["model"] == "f-cru")
    mean = series["predictions"][run]["mean"][0][at]
    assert re.search(rf"f-CRU{re.escape(f'{mean:.4g}'.replace('-', '−'))}\D", text), (text, mean)


def test_keys_step_through_the_frames(page, data, tmp_path):
    page.open(written(data, tmp_path))  # pendulum-interpolation: truth, what was seen, what the model says
    label = "[...document.querySelectorAll('.frames canvas')].map(c => c.getAttribute('aria-label'))"
    assert all("frame 1 of 50" in text for text in page.run(label)) and len(page.run(label)) == 3
    page.click('button[aria-label="Next frame"]')
    assert all("frame 2 of 50" in text for text in page.run(label))
    page.run("document.querySelector('#series .plot svg').focus()")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    assert all("frame 3 of 50" in text for text in page.run(label))


def test_frames_show_the_pixels_of_the_data(page, data, tmp_path):
    page.open(written(data, tmp_path))
    page.frame()
    for name, number in (("truth", 0), ("seen", 1)):
        pixels = page.run(
            f"[...document.querySelectorAll('.frames canvas')[{number}].getContext('2d')"
            ".getImageData(0, 0, 24, 24).data]"
        )[::4]
        assert len(pixels) == 576 and max(pixels) > 200, name  # the first frames are always shown
    from cru.data.datasets import pendulum

    test = pendulum.load(pendulum.INTERPOLATION).test
    assert pixels == test.values[0, 0].ravel().tolist()


def test_a_missing_prediction_leaves_a_gap_in_the_band(page, data, tmp_path):
    series = data["experiments"][1]["series"][0]
    for said in series["predictions"].values():
        for k in (10, 11):
            said["mean"][0][k] = None
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    shapes = page.run("document.querySelector('#series path.band').getAttribute('d')")
    assert "NaN" not in shapes and [shape.count("M") for shape in shapes.split("Z")] == [1, 1, 0]
    assert [len(re.findall("[ML]", shape)) for shape in shapes.split("Z")] == [2 * 10, 2 * 38, 0]


def test_models_without_a_gain_are_named(page, data, tmp_path):
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    assert page.run("document.querySelector('#gainless').textContent") == "No Kalman gain to show: GRU-Δt."


def test_runs_that_differ_in_a_setting_alone_are_told_apart(page, data, tmp_path):
    run = next(run for run in data["runs"] if run["model"] == "gru-dt")
    longer = json.loads(json.dumps(run)) | {"id": "longer"}
    longer["settings"]["training"] |= {"epochs": 7, "schedule": "cosine"}
    run["settings"]["training"] |= {"schedule": None}  # what is not set is not said
    data["runs"] += [longer, longer | {"id": "again"}]
    page.open(written(data, tmp_path))
    page.click('.tabs button[data-preset="pendulum-regression"]')
    names = page.run("[...document.querySelectorAll('#runs tbody th')].map(cell => cell.textContent)")
    changed = "GRU-Δt, seed 0, epochs 7, schedule cosine"
    # The rows are sorted by score, and the scores of this tiny training depend on the machine.
    assert sorted(names) == ["GRU-Δt, seed 0, epochs 2", changed, f"{changed}, run 2", "f-CRU"]


def test_settings_are_called_those_of_the_preset(page, data, tmp_path):
    for run in data["runs"]:
        run["changed"] = []
    page.open(written(data, tmp_path))
    assert "the preset's" in page.run("document.querySelector('#runs').textContent")
    assert "Filled: as the preset has it." in page.run("document.querySelector('#dots').textContent")
    assert "paper's settings" not in page.run("document.body.innerText")


def test_hostile_names_are_text(page, data, tmp_path):
    data["title"] = data["experiments"][0]["preset"] = data["experiments"][0]["about"] = EVIL
    data["experiments"][0]["notes"] = [EVIL]
    data["experiments"][0]["time"] = data["experiments"][0]["error_unit"] = EVIL
    for series in data["experiments"][0]["series"]:
        series["id"] = EVIL
    for run in data["runs"]:
        if run["preset"] == "pendulum-interpolation":
            run["preset"] = run["commit"] = EVIL
            run["settings"]["data"]["task"] = EVIL
    data["styles"]["f-cru"] |= {"name": EVIL, "light": f"red}}{EVIL}"}
    page.open(written(data, tmp_path))
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.frame()
    assert page.run("document.title") == EVIL and page.run("document.querySelector('h1').textContent") == EVIL
    assert page.run("document.querySelector('#series option').textContent") == EVIL
    assert page.run("document.querySelector('.tabs button').textContent") == EVIL
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 2


def test_a_script_or_style_that_is_put_into_the_page_does_nothing(page, data, tmp_path):
    path = written(data, tmp_path)
    put = "<script>document.title = 'taken'</script><style>body { opacity: 0.5 }</style><p style='opacity: 0.5'>x</p>"
    path.write_text(path.read_text(encoding="utf-8").replace("<body>", f"<body>{put}"), encoding="utf-8")
    page.open(path)
    assert page.run("document.title") != "taken"
    assert page.run("getComputedStyle(document.body).opacity") == "1"
    assert page.run("getComputedStyle(document.querySelector('p')).opacity") == "1"
    assert page.run("document.querySelectorAll('#dots circle').length") > 0  # the page's own still work
    page.complaints.clear()


def test_every_chart_says_in_words_what_it_shows(page, data, tmp_path):
    page.open(written(data, tmp_path))
    for preset in ("pendulum-interpolation", "pendulum-regression"):
        page.click(f'.tabs button[data-preset="{preset}"]')
        labels = page.run("[...document.querySelectorAll('[role=img]')].map(node => node.getAttribute('aria-label'))")
        assert len(labels) > 5 and all(re.search(r"\d", label) for label in labels), labels
        assert page.run("document.querySelectorAll('figure .plot + details').length") >= 4
    page.run("document.querySelectorAll('figure details').forEach(d => { d.open = true; })")
    page.frame()
    text = page.run("document.querySelector('#dots table').textContent")
    for run in data["runs"]:
        if run["preset"] == "pendulum-regression":
            assert f"{run['test']['mse']:.6g}" in text


def test_a_small_screen_and_dark_mode(page, data, tmp_path):
    check_small_screen_and_dark_mode(page, written(data, tmp_path))


def test_fifty_runs_stay_below_eight_megabytes(page, data, tmp_path):
    """Ten models on five experiments as large as USHCN: the number of series gives way."""
    models = ["cru", "f-cru", "rkn", "rkn-dt", "gru", "gru-dt", "gru-d", "ode-rnn", "latent-ode", "mtand"]
    look, source = data["styles"]["f-cru"], next(run for run in data["runs"] if run["model"] == "f-cru")
    curve = {name: [1.0 / epoch for epoch in range(1, 101)] for name in ("epoch", "loss", "mse", "nll", "mae", "crps")}
    said = [{"any": weather(name=f"station {k}", seed=k)} for k in range(4)]
    stations = [describe_series(one, names=NAMES, units=["mm"] * 5, regression=False) for one in said]
    data["styles"] = {model: look | {"name": model} for model in models}
    data["runs"], data["experiments"] = [], []
    for number in range(5):
        runs = [
            source | {"id": f"{number} {model}", "preset": f"experiment {number}", "model": model} for model in models
        ]
        data["runs"] += [run | {"curve": curve | {"epoch": list(range(1, 101))}} for run in runs]
        described = [one | {"predictions": {run["id"]: one["predictions"]["any"] for run in runs}} for one in stations]
        series = limit_size(described, report_data.SERIES_BYTES // 5)
        empty = {
            "paper": {},
            "about": "",
            "calibration": {},
            "gaps": {},
            "gain": {},
            "notes": [],
            "time": "time [days]",
        }
        data["experiments"].append(empty | {"preset": f"experiment {number}", "series": series, "error_unit": "–"})
    path = written(data, tmp_path)
    assert 3e6 < path.stat().st_size < 8e6
    page.open(path)
    assert page.run("document.querySelectorAll('#dots circle').length") == 10
    assert page.run("document.querySelectorAll('#series svg path[data-line]').length") == 20  # means and gains
