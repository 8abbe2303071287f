"""examples/errors.py on a run on the five stations of the fixture."""

import runpy
from pathlib import Path

from cru.training import run
from cru.training.presets import settings_for


def test_the_error_of_a_run_is_shared_out_among_the_features(ushcn_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CRU_DATA_DIR", str(ushcn_dir))
    settings = settings_for("ushcn-interpolation", "f-cru", changes=["training.epochs=1"])
    run(settings, tmp_path / "f-cru-0")
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "errors.py"))["main"](tmp_path / "f-cru-0")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in lines] == [
        [f"scaling={scaling}", name] for scaling in ("each", "train") for name in ("train", "validation", "test")
    ]
    assert lines[0].split("MSE")[1] == lines[3].split("MSE")[1]  # the training set is scaled by itself, either way
    assert all("%" in line and "TMAX" in line for line in lines)
