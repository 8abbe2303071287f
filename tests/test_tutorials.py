"""The tutorials run as a reader would run them: their Python from top to bottom, then their commands, in one folder."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from cru.cli import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "tutorials" / page).read_text(), re.S)


def run(page: str, folder: Path, monkeypatch) -> tuple[dict, list[str]]:
    """What the Python of a page leaves behind, and what its commands print: `cru ...`, or `echo '...' | cru ...`."""
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    names: dict = {}
    for number, block in enumerate(blocks(page, "python"), 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    printed = []
    for line in "".join(blocks(page, "bash")).splitlines():
        echo, command = ([], shlex.split(line)) if " | " not in line else map(shlex.split, line.split(" | "))
        assert command[0] == "cru" and (echo == [] or echo[0] == "echo")
        result = CliRunner().invoke(app, command[1:], input=" ".join(echo[1:]))
        assert result.exit_code == 0, (line, result.output)
        printed += result.stdout.splitlines()
    return names, printed


def test_weather(tmp_path, monkeypatch) -> None:
    names, _ = run("first-forecast.md", tmp_path, monkeypatch)
    answers = names["model"].predict(names["known"], at=names["days"])
    warm = answers[answers["variable"] == "TMAX"].set_index("date")
    width = warm["hi-90"] - warm["lo-90"]
    assert width["1990-07-20"] > width["1990-06-20"]  # the last day of the gap, and a day among observations


def test_ward(tmp_path, monkeypatch) -> None:
    names, printed = run("intensive-care.md", tmp_path, monkeypatch)
    answers = [json.loads(line) for line in printed]
    assert [answer.get("time") for answer in answers] == [0.5, 6.5, 1.4, 2.0, None]
    assert answers[0]["predictions"].keys() == {"HR", "MAP", "Temp"}
    assert answers[-1]["error"] == "a line must be one JSON object."
    assert names["board"]["patient"].nunique() == pd.Series(names["table"]["patient"]).nunique()


@pytest.mark.parametrize(("name", "pictures"), [("weather", ("gap", "coverage")), ("ward", ("patient", "board"))])
def test_the_examples_draw_the_pictures(name: str, pictures: tuple[str, ...], tmp_path) -> None:
    words = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py"), "--small", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}-{picture}.png" for picture in pictures}
    assert all((ROOT / "docs" / "pictures" / f"{name}-{picture}.png").exists() for picture in pictures)
