"""The verbs run, list, table, reproduce and doctor, as a user meets them."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cru.data.datasets import pendulum
from tests.cli.helpers import SMALL_PENDULUM, cru, refused

QUICK = ["--set", "training.epochs=2", "--set", "training.batch_size=6"]


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    """An own cache and folder, and a pendulum with few sequences."""
    monkeypatch.setenv("CRU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CRU_DATA_DIR", raising=False)
    monkeypatch.setattr(pendulum, "SIZES", (12, 4, 4))
    monkeypatch.chdir(tmp_path)


def test_run_then_resume_then_table(tmp_path):
    words = ["run", "pendulum-regression", "--model", "gru-dt", *QUICK, "--set", "data.train=10"]
    first = cru(*words)
    assert first.exit_code == 0, first.output
    assert "epoch 2/2" in first.stdout and "validation mse" in first.stdout and "shortened" in first.stdout
    entry = json.loads((tmp_path / "results" / "ledger.jsonl").read_text())
    assert entry["series"] == {"train": 10, "validation": 4, "test": 4} and entry["shortened"]
    assert entry["changed"] == ["data.train", "training.batch_size", "training.epochs"]
    assert "which already holds a run. Give --resume to continue the run, or another --out." in refused(*words)
    assert cru(*words, "--resume").exit_code == 0
    assert len((tmp_path / "results" / "ledger.jsonl").read_text().splitlines()) == 1
    table = cru("table")
    assert table.exit_code == 0 and "1 shortened or changed runs" in table.stdout
    assert "Table 1." in table.stdout and "4.626 ± 1.072" in table.stdout


def test_the_same_command_gives_the_same_numbers(tmp_path):
    for name in ("a", "b"):
        assert cru("run", "pendulum-interpolation", "--model", "gru-dt", *QUICK, "--out", name).exit_code == 0
    one, other = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("a", "b"))
    assert one["scores"] == other["scores"] and "crps" not in one["scores"]["best"]["test"]["all"]


def test_a_misspelt_name_or_key_gets_the_closest_match():
    assert "Did you mean 'pendulum-regression'?" in refused("run", "pendulum-regresion")
    assert "did you mean 'gru-dt'?" in refused("run", "pendulum-regression", "--model", "gru-dtt")
    assert "did you mean 'epochs'?" in refused("run", "pendulum-regression", "--set", "training.epoch=3")
    assert "did you mean 'target'?" in refused("run", "pendulum-regression", "--set", "data.task_options.taget=x")
    assert "did you mean 'cru'?" in refused("reproduce", "--models", "crux")
    assert "there is no folder nowhere" in refused("run", "ushcn-interpolation", "--data-dir", "nowhere", "--out", "x")
    assert "No such file" in refused("run", "mine.toml")
    assert "Invalid value for 'name': 'gain' is not one of 'runtime', 'gain-noise'" in refused("figure", "gain")


def test_tensorboard_is_an_extra():
    from importlib.util import find_spec

    if find_spec("tensorboard"):
        pytest.skip("it is installed")
    assert "pip install tensorboard" in refused("run", "pendulum-regression", "--tensorboard")


def test_list_shows_presets_models_and_datasets():
    result = cru("list")
    assert result.exit_code == 0
    for name in ("pendulum-regression", "ushcn-sparseness", "f-cru", "climatology", "physionet"):
        assert name in result.stdout


def test_doctor_says_what_is_there_and_what_is_missing(monkeypatch):
    monkeypatch.setenv("CRU_DATA_DIR", "/no/such/folder")
    result = cru("doctor")
    assert result.exit_code == 0
    for word in (
        "torch",
        "cpu",
        "compiler",
        "MISSING: CRU_DATA_DIR is /no/such/folder",
        "not yet: cru data prepare",
    ):
        assert word in result.stdout


def test_reproduce_shows_what_is_missing(tmp_path):
    result = cru("reproduce", "--presets", "pendulum-regression", "--models", "cru,mean", "--seeds", "2", "--dry-run")
    assert result.exit_code == 0 and "3 runs are missing" in result.stdout
    assert result.stdout.index("mean seed 0") < result.stdout.index("cru seed 0") < result.stdout.index("cru seed 1")
    assert "mean seed 1" not in result.stdout, "its seeds share one split, and nothing else of it is random"


def test_table_as_a_page(tmp_path):
    result = cru("table", "--out", "docs/results.md")
    assert result.exit_code == 0
    page = Path("docs/results.md").read_text()
    assert page.startswith("# Results") and page.count("## Table") == 3 and "| cru |" in page


def test_times_beside_the_paper_s(monkeypatch):
    taken = {"cru": 4.0, "f-cru": 6.0}
    monkeypatch.setattr("cru.reporting.timing.load_splits", lambda settings, data_dir: None)
    monkeypatch.setattr(
        "cru.reporting.timing.measure_epoch", lambda settings, splits, epochs: taken.get(settings.model.name, 1.0)
    )
    assert "must be 1 or 2 with --time, got 3. Table 3 has no times." in refused("table", "3", "--time")
    assert "pendulum-regression f-cru: 6.00 s per epoch" in cru("table", "2", "--time").stdout
    assert cru("table", "--out", "page.md").exit_code == 0  # they are kept
    page = Path("page.md").read_text()
    assert "| f-cru | 1.386 ± 0.162 | – | 0.81, 1.50 | 6.155 ± 0.881 | – | 0.81, 1.50 |" in page
    assert page.count("time ÷ CRU's") == 2, "Table 1 was not measured, and Table 3 has no times"


def start(*words, **options):
    return subprocess.Popen([sys.executable, "-c", SMALL_PENDULUM, *words], text=True, env=os.environ, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_130_and_a_usable_checkpoint(tmp_path, number):
    words = ["run", "pendulum-regression", "--model", "gru", "--set", "training.batch_size=6", "--out", "r"]
    process = start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (tmp_path / "r" / "last.safetensors").exists():
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert errors.strip().count("\n") == 0 and "Continue with --resume" in errors
    from cru.training.checkpoint import read_checkpoint

    assert read_checkpoint(tmp_path / "r" / "last.safetensors")[1]["progress"]["epoch"] >= 1


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    from filelock import FileLock

    Path("r").mkdir()
    with FileLock("r/.lock"):
        assert "another process uses r" in refused("run", "pendulum-regression", *QUICK, "--out", "r")


def test_a_terminal_gets_a_live_bar(monkeypatch):
    leader, follower = pty.openpty()
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    words = ["run", "pendulum-regression", "--model", "gru", *QUICK]
    process = start(*words, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    assert process.wait(60) == 0
    text = shown.decode(errors="replace")
    assert "epoch 2/2" in text and "best mse" in text and "left 0:00:00" in text and "\rgru  " in text


@pytest.mark.parametrize("words", [[], ["run"]])
def test_help_imports_nothing_heavy(words):
    code = f"import sys; from cru.cli import app\ntry: app([*{words}, '--help'])\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'numpy', 'accelerate', 'pandas', 'polars', 'matplotlib'} & set(sys.modules)\n"
    code += "assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_version():
    assert cru("--version").stdout.startswith("cru 0.")


def test_a_setting_without_its_section_gets_the_section():
    assert "did you mean 'training.epochs'?" in refused("run", "pendulum-regression", "--set", "epochs=5")


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    said = refused("run", "pendulum-regression", *QUICK, "--out", tmp_path / "mine")
    assert "--out must be a new or empty folder, or hold a run, got " in said and "which has config.json." in said
    assert [path.name for path in (tmp_path / "mine").glob("[!.]*")] == ["config.json"]


def test_a_file_of_another_kind_is_no_ledger(tmp_path):
    (tmp_path / "observations.csv").write_text("time,x\n1,2\n")
    assert "is not a ledger" in refused("table", "--ledger", tmp_path / "observations.csv")


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CRU_CACHE_DIR", str(tmp_path / "file" / "cache"))
    result = cru("run", "pendulum-regression", "--model", "gru-dt", *QUICK)
    assert result.exit_code == 0, result.output


def test_a_run_is_shown_where_only_its_best_epoch_has_a_score(tmp_path, capsys):
    from cru.cli.run import _show

    def scores(**more):
        return {"epoch": 1, "test": {"scored": "all", "all": {"mse": 0.5, "count": 3} | more}}

    record = {"scores": {"best": scores(rubanova=0.25), "last": scores()}, "shortened": False}
    _show(record | {"seconds_per_epoch": 1.0, "parameters": 7}, tmp_path)
    shown = capsys.readouterr().out
    assert "0.25" in shown and "–" in shown
