"""`cru` on a terminal: bars, Ctrl-C, and what it says without a command."""

import os
import re
import signal
import subprocess
import sys

import pytest

import cru as library
from tests.cli.helpers import cru, done
from tests.terminal import ROOT, run_on_terminal

COMMAND = ["-m", "cru.cli"]


def test_without_a_command_it_names_the_first_three() -> None:
    said = done()
    assert re.findall(r"^  cru (\w+)", said, re.M) == ["fit", "forecast", "plot"]
    assert "`cru --help` lists all commands." in said and max(map(len, said.splitlines())) <= 80
    assert cru("data").exit_code == 2  # a group of commands still asks for one


@pytest.fixture
def table(tmp_path):
    weather = library.data.sample("weather")
    some = weather["station"].isin(weather["station"].unique()[:4])
    weather[some].groupby("station").head(200).to_csv(tmp_path / "weather.csv", index=False)
    return tmp_path


@pytest.mark.slow
def test_ctrl_c_stores_the_best_epoch(table) -> None:
    words = [*COMMAND, "fit", "weather.csv", "--id", "station", "--time", "date", "--out", "model"]
    pressed = []

    def press(text: str, process: int) -> None:
        if "epoch 3/5000" in text and not pressed:
            pressed.append(process)
            os.kill(process, signal.SIGINT)

    code, text = run_on_terminal([*words, "--epochs", "5000"], table, press)
    assert code == 0 and pressed, text
    assert "fit  preparation" in text and "best nll" in text and "left 0:" in text
    assert "Press Ctrl-C again to stop without a result." in text
    assert re.search(r"Note: Ctrl-C ended the training after \d+ of 5000 epochs", text)
    assert "Stored in model." in text
    done("forecast", table / "model", "--horizon", "3D", "--out", table / "forecast.csv")


@pytest.mark.slow
def test_ctrl_c_before_the_training_stores_nothing(table) -> None:
    library.data.sample("weather").to_csv(table / "weather.csv", index=False)  # prepared for several seconds
    words = [*COMMAND, "fit", "weather.csv", "--id", "station", "--time", "date", "--out", "model"]

    pressed = []

    def press(text: str, process: int) -> None:
        if "fit  preparation" in text and not pressed:
            pressed.append(process)
            os.kill(process, signal.SIGINT)

    code, text = run_on_terminal(words, table, press)
    assert code == 130 and "cru: interrupted; nothing is stored" in text and "Traceback" not in text, text
    assert not (table / "model").exists()


@pytest.mark.slow
def test_a_pipe_sees_no_bar(table) -> None:
    words = [sys.executable, *COMMAND, "fit", "weather.csv", "--id", "station", "--time", "date", "--out", "model"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*words, "--epochs", "1"], cwd=table, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stderr == "" and "epoch" not in ended.stdout and "\r" not in ended.stdout
