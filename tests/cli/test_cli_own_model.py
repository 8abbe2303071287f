"""A class of one's own, in a file beside the runs, as docs/how-to/write-your-own-model.md has it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cru.training import load_model
from tests.cli.helpers import cru, refused

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "write-your-own-model.md").read_text()
EXAMPLE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def beside(tmp_path, monkeypatch, pendulum_runs):
    (tmp_path / "mine.py").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_it_trains_and_is_loaded_and_stands_in_the_table(beside, monkeypatch):
    words = ["run", "pendulum-regression", "--model", "mine:Mine", "--set", "model.hidden_size=8"]
    done = cru(*words, "--set", "training.epochs=2", "--out", "runs/mine")
    assert done.exit_code == 0, done.output
    entry = json.loads((beside / "results" / "ledger.jsonl").read_text())
    assert entry["model"] == "mine:Mine" and entry["changed"] == ["model.options.hidden_size", "training.epochs"]
    with pytest.raises(ValueError, match=r"runs/mine names the model 'mine:Mine', which would import and run"):
        load_model("runs/mine")
    assert load_model("runs/mine", allow_code=True).layer.hidden_size == 8
    assert "which would import" in refused("figure", "calibration", "runs/mine")
    assert cru("figure", "curves", "runs/mine", "--allow-code").exit_code == 0
    assert "which would import" in cru("report", "runs/mine").stdout
    assert "which would import" not in cru("report", "runs/mine", "--allow-code").stdout
    again = cru(*words, "--set", "training.epochs=2", "--out", "runs/mine", "--resume")  # the user typed the name
    assert again.exit_code == 0, again.output
    full = entry | {"changed": [], "shortened": False}
    full["settings"]["model"]["options"] = {}
    full["settings"]["training"]["epochs"] = 100
    (beside / "results" / "ledger.jsonl").write_text(json.dumps(full) + "\n")
    planned = cru("reproduce", "--models", "mine:Mine", "--seeds", "1", "--dry-run")
    assert "mine:Mine" in planned.stdout, planned.output
    (beside / "mine.py").write_text("in the middle of a sent")  # what is there can be looked at all the same
    monkeypatch.delitem(sys.modules, "mine")
    assert "mine:Mine" in cru("table").stdout


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("yours:Model", "No module named 'yours'"),
        ("./mine.py:Mine", "must be module:Class"),
        ("mine:Other", "has no attribute 'Other'"),
        ("mine:MineConfig", "must be a subclass of cru.models.Model"),
    ],
)
def test_a_class_that_is_not_a_model_raises_one_sentence(beside, model, sentence):
    assert sentence in refused("run", "pendulum-regression", "--model", model)


def test_options_that_it_does_not_have_are_refused(beside):
    words = ["run", "pendulum-regression", "--model", "mine:Mine", "--set", "model.size=3"]
    assert "there is no setting `model.size`" in refused(*words)


def test_a_command_finds_it_in_its_folder(beside):
    (beside / "no.py").write_text("raise ImportError('found, and it says so')")
    words = ["run", "pendulum-regression", "--model", "no:Way"]
    command = [sys.executable, "-c", "from cru.cli import app; app()", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=beside)
    assert done.returncode == 2 and "found, and it says so" in done.stderr
