"""The page as text: safe against what is put into it, and complete."""

import base64
import hashlib
import json
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cru.reporting.html_page import embed
from cru.reporting.report_page import SCRIPTS, describe_series, encode_frames, render
from cru.reporting.view_page import VIEW_SCRIPTS
from tests.evaluation.handmade import filled_in, frames, weather

EMPTY = {"title": "x", "made": "", "styles": {}, "tables": [], "runtime": None, "runs": [], "experiments": []}


@given(st.text())
def test_embedded_text_comes_back_and_cannot_leave_its_element(text):
    embedded = embed({"name": text})
    assert json.loads(embedded) == {"name": text}
    assert not re.search("[<>&\u2028\u2029]", embedded)


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", '"\\u003c', "{{data}}", "'\"&lt;"]
)
def test_hostile_texts_in_a_page(text):
    page = render(EMPTY | {"title": text, "made": text})
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert json.loads(found[1])["made"] == text
    assert page.count("<script") == 2 and page.count("</script>") == 2 and page.count("<title>") == 1


def test_numbers_that_json_does_not_know_are_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        embed(float("nan"))


def test_the_page_names_nothing_outside_itself():
    page = render(EMPTY)
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}  # the name of a language
    assert "default-src 'none'" in page and "innerHTML" not in page and "eval(" not in page


def test_the_page_allows_its_own_script_and_style_alone():
    page = render(EMPTY | {"title": "<style>"})
    assert "unsafe" not in page and not re.search(r"<[^>]+\s(style|on\w+)=", page)
    for name in ("style", "script"):
        (text,) = re.findall(f"<{name}>(.*?)</{name}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}';" in page


def test_everything_the_page_is_made_of_is_in_the_package():
    present = {file.name for file in (files("cru") / "reporting" / "assets").iterdir()}
    assert {"page.html", "style.css", *SCRIPTS} <= present
    assert {name for name in present if name.endswith(".js")} == {*SCRIPTS, *VIEW_SCRIPTS}


def test_a_series_of_features():
    first, second = weather(seed=0), weather(seed=0)._replace(std=None)
    series = describe_series({"a": first, "b": second}, names="pqrst", units=("mm",) * 5, regression=False)
    assert [channel["name"] for channel in series["channels"]] == list("pqrst")
    channel = series["channels"][1]
    assert channel["seen"]["at"] == list(range(365)) and channel["withheld"]["at"] == list(range(365, 730))
    np.testing.assert_allclose(channel["seen"]["values"], first.targets[:365, 1], rtol=1e-3)
    np.testing.assert_allclose(series["predictions"]["a"]["mean"][1], first.mean[:, 1], rtol=1e-3)
    assert series["predictions"]["b"]["std"] is None and series["predictions"]["a"]["gain"][-1] is None


def test_features_never_seen_are_left_out():
    station = weather()
    nothing = np.zeros((730, 1), bool)
    mask, known = (np.hstack([nothing, array[:, 1:]]) for array in (station.mask, station.target_mask))
    series = describe_series(
        {"a": station._replace(mask=mask, target_mask=known)}, names="pqrst", units=(), regression=False
    )
    assert [channel["name"] for channel in series["channels"]] == list("qrst")
    assert len(series["predictions"]["a"]["mean"]) == 4


def test_a_series_of_images():
    series = describe_series({"a": frames()}, names=("sine", "cosine"), units=("–", "–"), regression=True)
    assert series["frames"]["truth"] is None and len(series["noise"]) == 20 and "truth" in series["channels"][0]
    filled = describe_series({"a": filled_in()}, names=("image",), units=("",), regression=False)
    assert filled["channels"] == [] and filled["frames"]["truth"] and filled["predictions"]["a"]["frames"]
    assert filled["frames"]["observed"].count("1") == filled_in().observed.sum()
    error = np.sqrt(((filled_in().targets - filled_in().mean) ** 2).mean((1, 2, 3)))
    np.testing.assert_allclose(filled["predictions"]["a"]["error"], error, rtol=1e-3)


def test_encoded_frames_are_one_above_another():
    import base64
    import io

    from PIL import Image

    shown = filled_in().targets[:, 0]
    data = encode_frames(shown).removeprefix("data:image/png;base64,")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    np.testing.assert_allclose(pixels.reshape(30, 24, 24) / 255, shown, atol=0.5 / 255 + 1e-9)
