"""The tutorials run as a reader would run them: their Python from top to bottom, then their commands, in one folder."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from cru.cli import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


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
    assert width["1992-07-10"] > width["1992-06-20"]  # a day in the gap, and a day among observations


def test_ward(tmp_path, monkeypatch) -> None:
    names, printed = run("intensive-care.md", tmp_path, monkeypatch)
    answers = [json.loads(line) for line in printed]
    assert [answer.get("time") for answer in answers] == [0.5, 6.5, 1.4, 2.0, None]
    assert answers[0]["predictions"].keys() == {"HR", "MAP", "Temp"}
    assert answers[-1]["error"] == "a line must be one JSON object."
    assert names["board"]["patient"].nunique() == pd.Series(names["table"]["patient"]).nunique()
