"""What a notebook shows of a forecaster."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
from tests.forecaster.conftest import stations


def test_a_forecaster_that_is_not_fitted():
    assert Forecaster(epochs=3)._repr_html_() == "<div><code>Forecaster(epochs=3)</code></div>"


@pytest.mark.parametrize("which", ["repeater", "trained", "default"])
def test_a_fitted_forecaster(which, request):
    model = request.getfixturevalue(which)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        html = model._repr_html_()
    assert html.count("<svg") == 1 and html.count("<polygon") == 2 and "high" in html
    assert f"R² {model.scores_['r2']:.3f}" in html and "nan" not in html.lower()
    assert html.count("<tr>") == (1 + len(model.scores_["table"]) if model.scores_["table"] else 0)
    for row in model.scores_["table"]:
        assert f"{row['model']:.3f}" in html and f"{row['climatology']:.3f}" in html
    assert not re.search(r"<script|<style|\son\w+=", html)


def test_a_loaded_forecaster_says_the_same(trained, tmp_path):
    trained.save(tmp_path / "whole")
    assert Forecaster.load(tmp_path / "whole")._repr_html_() == trained._repr_html_()
    trained.save(tmp_path / "short", history=False)
    assert "<svg" not in (short := Forecaster.load(tmp_path / "short")._repr_html_()) and "<table" in short


def test_hostile_names_are_text():
    evil = "</svg><script>alert(1)</script>"
    table = stations(6, 20).rename(columns={"high": evil, "station": f"{evil} id"})
    table[f"{evil} id"] += evil
    html = Forecaster("last-value", progress=False).fit(table, id=f"{evil} id", time="date")._repr_html_()
    assert "<script" not in html and html.count("</svg>") == 1


def test_few_values():
    frame = pd.DataFrame({"t": np.arange(20.0), "x": np.ones(20)})
    html = Forecaster("last-value", progress=False).fit(frame, time="t")._repr_html_()
    assert "<svg" in html and "nan" not in html.lower()


def test_a_backtest(repeater):
    found = repeater.backtest(horizon="10D", cuts=3)
    html, rows = found._repr_html_(), found.scores(by=["variable", "lead"])
    assert f"{len(found.predictions):,} predictions" in html and "<caption>" in html and "nan" not in html.lower()
    for variable in rows["variable"].unique():
        assert f"<td>{variable}</td>" in html
