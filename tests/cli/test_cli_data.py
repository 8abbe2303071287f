import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cru.data.datasets import pendulum
from tests.cli.helpers import cru, refused
from tests.data.raw_formats import dly_text


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    """An own cache and folder, and a pendulum with few sequences."""
    monkeypatch.setenv("CRU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CRU_DATA_DIR", raising=False)
    monkeypatch.setattr(pendulum, "SIZES", (8, 4, 3))
    monkeypatch.chdir(tmp_path)


def test_list_shows_every_dataset():
    result = cru("data", "list")
    assert result.exit_code == 0
    for name in ("pendulum-interpolation", "pendulum-regression", "physionet", "ushcn", "Prepared data is stored in"):
        assert name in result.stdout


def test_prepare_then_show(tmp_path):
    result = cru("data", "prepare", "pendulum-regression")
    assert result.exit_code == 0 and "8 train, 4 validation, 3 test series" in result.stdout
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["pendulum-regression-0.npz"]
    result = cru("data", "show", "pendulum-regression", "--out", "frames.png")
    assert result.exit_code == 0 and "Picture: frames.png" in result.stdout and "1 x 24 x 24" in result.stdout
    assert (tmp_path / "frames.png").read_bytes().startswith(b"\x89PNG")


def test_show_of_features(tmp_path, ushcn_dir):
    result = cru("data", "show", "ushcn", "--data-dir", ushcn_dir)
    assert result.exit_code == 0, result.output
    assert "TMAX" in result.stdout and "gaps [D]" in result.stdout and "°C" in result.stdout
    assert (tmp_path / "ushcn.png").stat().st_size > 10_000


def test_sample_writes_a_table_that_fit_reads(tmp_path):
    result = cru("data", "sample", "weather", "--out", "weather.csv")
    assert result.exit_code == 0 and "63,421 rows in weather.csv: station, date, TMAX" in result.stdout
    lines = (tmp_path / "weather.csv").read_text().splitlines()
    assert lines[:2] == ["station,date,TMAX,TMIN,PRCP,SNWD", "USC00011084,1990-01-01,20.0,1.7,0.0,0.0"]
    assert lines[3] == "USC00011084,1990-01-03,13.3,,0.0,0.0"  # a missing value is an empty field
    assert "Did you mean 'weather'?" in refused("data", "sample", "wether", "--out", "weather.csv")


def test_a_misspelt_dataset_gets_the_closest_match():
    assert "Did you mean 'physionet'?" in refused("data", "prepare", "phisionet")
    assert "Did you mean 'ushcn'?" in refused("data", "show", "uschn")


def test_missing_folders_and_files(tmp_path):
    assert "there is no folder nowhere" in refused("data", "prepare", "ushcn", "--data-dir", "nowhere")
    assert "must hold set-a.tar.gz" in refused("data", "prepare", "physionet", "--data-dir", str(tmp_path))
    assert "must end in .png" in refused("data", "show", "pendulum-regression", "--out", "x.gif")


def test_wrong_words_are_usage_errors_of_one_line():
    for words in (["data", "prepare"], ["data", "fly"], ["data", "prepare", "ushcn", "--seed", "-1"], ["--nope"]):
        result = cru(*words)
        assert result.exit_code == 2 and re.fullmatch(r"cru: .*[.?] See `cru.* --help`\.\n", result.stderr)


def test_a_cut_line_and_a_truncated_archive(tmp_path):
    (tmp_path / "x.dly").write_text(dly_text("USC00000001", range(1990, 1993))[:-100])  # two lines a month
    assert "line 72 has 170" in refused("data", "prepare", "ushcn", "--data-dir", str(tmp_path))
    (tmp_path / "x.dly").unlink()
    (tmp_path / "x.dly.gz").write_bytes(b"\x1f\x8b\x08 nothing like gzip")
    assert "truncated or damaged" in refused("data", "prepare", "ushcn", "--data-dir", str(tmp_path))
    assert not list((tmp_path / "cache").glob("**/*"))


def test_a_tampered_archive(tmp_path):
    for name in ("set-a.tar.gz", "set-b.tar.gz", "Outcomes-a.txt", "Outcomes-b.txt"):
        (tmp_path / name).write_bytes(b"something else")
    found = hashlib.sha256(b"something else").hexdigest()[:12]
    message = refused("data", "prepare", "physionet", "--data-dir", str(tmp_path))
    assert "must be the official file" in message and found in message


def test_no_internet(monkeypatch, tmp_path):
    from cru.data.datasets import physionet

    monkeypatch.setattr(physionet, "URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    message = refused("data", "prepare", "physionet")
    assert "cannot download http://127.0.0.1:9/set-a.tar.gz" in message and "CRU_DATA_DIR" in message
    assert not [p for p in (tmp_path / "cache").glob("**/*") if p.is_file() and p.suffix != ".lock"]


def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path):
    command = "sys.argv = ['cru', 'data', 'prepare', 'pendulum-interpolation']"
    code = f"import sys, torch, cru.data; from cru.cli import app; {command}; print('now', flush=True); app()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None and process.stdout.readline() == "now\n"
    time.sleep(0.5)  # it is simulating 4 000 pendulums
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors and "interrupted" in errors
    assert not [p for p in (tmp_path / "cache").glob("**/*") if p.is_file()]


def test_data_imports_no_layers_models_or_training():
    code = "import sys, cru.data\n"
    code += "above = 'cru.layers', 'cru.models', 'cru.functional', 'cru.training', 'cru.cli', 'matplotlib'\n"
    code += "wrong = [m for m in sys.modules if m.startswith(above)]; assert not wrong, wrong"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
