"""The verbs figure and report, as a user meets them."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

from cru.cli.figure import Name
from cru.reporting.reproduction import Group
from cru.reporting.run_figures import FIGURES, RUNS
from cru.training import settings_for
from tests.cli.helpers import cru, refused


def test_the_help_knows_every_figure():
    assert [name.value for name in Name] == list(FIGURES)


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("gain-noise", ["regression-f-cru"]),
        ("trajectory", ["interpolation-f-cru"]),
        ("curves", ["regression-f-cru", "regression-gru-dt"]),
        ("calibration", ["regression-f-cru", "regression-gru-dt"]),
        ("gaps", ["interpolation-f-cru"]),
        ("series", ["regression-gru-dt"]),
    ],
)
def test_figures_of_runs(name, runs, pendulum_runs, tmp_path):
    out = tmp_path / f"{name}.svg"
    done = cru("figure", name, *(pendulum_runs / run for run in runs), "--out", out)
    assert done.exit_code == 0, done.output
    assert f"Picture: {out}" in done.stdout and "<svg" in out.read_text()


def test_full_runs_are_trained_once_and_taken_from_where_they_are(pendulum_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text("""
        data = { seed = 0, dataset = "pendulum-regression", task = "regression", task_options = { target = "sin_cos" } }
        training = { epochs = 1, batch_size = 4 }
        models = { cru = { model = { hidden_size = 4 } }, f-cru = { model = { hidden_size = 4 } } }
    """)
    monkeypatch.setitem(RUNS, "gain-noise", Group(["tiny.toml"], ["cru", "f-cru"], 1))
    words = ["figure", "gain-noise", "--reproduce", "--out", "x.svg"]
    done = cru("run", "tiny.toml", "--model", "f-cru", "--out", "runs/by hand")
    assert done.exit_code == 0, done.output
    done = cru(*words)
    assert done.exit_code == 0, done.output
    assert "1 runs are missing, about 0.0 hours" in done.stdout and "tiny cru seed 0  in runs/tiny/cru-0" in done.stdout
    drawn = (tmp_path / "x.svg").read_text()
    assert "tiny: test sequence" in drawn and ">CRU<" in drawn and ">f-CRU<" in drawn
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert "missing" not in cru(*words, "elsewhere").stdout
    assert len((tmp_path / "results" / "ledger.jsonl").read_text().splitlines()) == 2
    result = tmp_path / "elsewhere" / "by hand" / "result.json"
    record = json.loads(result.read_text()) | {"data_version": 7}
    result.write_text(json.dumps(record))
    assert "tiny f-cru seed 0  in elsewhere/tiny/f-cru-0" in cru(*words, "elsewhere").stdout, "on other data"


def test_every_figure_but_runtime_has_full_runs():
    assert set(RUNS) == set(FIGURES) - {"runtime"}
    for group in RUNS.values():
        for model in group.models:
            settings_for(group.presets[0], model)


def test_cru_reproduce_makes_the_runs_of_the_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "ushcn-sparseness cru seed 0" in cru("reproduce", "--seeds", "1", "--dry-run").stdout
    assert "ushcn-sparseness" not in cru("reproduce", "--models", "cru", "--seeds", "1", "--dry-run").stdout


def test_a_series_can_be_chosen(pendulum_runs, tmp_path):
    out, run = tmp_path / "x.svg", pendulum_runs / "regression-f-cru"
    assert cru("figure", "series", run, "--series", "0013", "--out", out).exit_code == 0
    assert "test series 0013" in out.read_text()
    assert "first 4 test series, 0012 to 0015, got '7'" in refused(
        "figure", "series", run, "--series", "7", "--out", out
    )


def test_runtime_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("cru.reporting.figures.measure_runtime", lambda: {"cru": {4: 0.001}, "f-cru": {4: 0.002}})
    assert cru("figure", "runtime", "--reproduce", "--out", tmp_path / "runtime.svg").exit_code == 0
    assert "f-CRU" in (tmp_path / "runtime.svg").read_text()


def test_wrong_input_raises_one_sentence(pendulum_runs, tmp_path):
    out = tmp_path / "x.png"
    assert "is not one of" in cru("figure", "nothing").stderr
    assert "needs the folder of a run" in refused("figure", "curves", "--out", out)
    assert "must end in .png" in refused("figure", "curves", pendulum_runs, "--out", tmp_path / "x.gif")
    assert "needs Gaussian predictions" in refused(
        "figure", "calibration", pendulum_runs / "interpolation-f-cru", "--out", out
    )
    assert "ushcn-sparseness" in refused("figure", "gain-sparseness", pendulum_runs / "regression-f-cru", "--out", out)
    assert "cru" in refused("figure", "gain-noise", pendulum_runs / "regression-gru-dt", "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["gain-noise", "trajectory", "curves", "calibration", "gaps"])
def test_a_figure_of_one_experiment_does_not_mix_several(name, pendulum_runs, tmp_path):
    said = refused("figure", name, pendulum_runs, "--out", tmp_path / "x.png")
    assert f"'{name}' shows one experiment, got runs of pendulum-interpolation, pendulum-regression. Name" in said


def test_runs_without_a_preset_are_told_apart_by_their_data(pendulum_runs, tmp_path):
    for name, data in (("a", {}), ("b", {}), ("c", {"train": 3})):
        shutil.copytree(pendulum_runs / "regression-f-cru", tmp_path / name)
        settings = json.loads((tmp_path / name / "settings.json").read_text())
        changed = settings | {"preset": None, "data": settings["data"] | data}
        (tmp_path / name / "settings.json").write_text(json.dumps(changed))
    out = tmp_path / "x.svg"
    assert cru("figure", "curves", tmp_path / "a", tmp_path / "b", "--out", out).exit_code == 0
    assert f"own data ({tmp_path / 'c'})" in refused("figure", "curves", tmp_path, "--out", out)


def test_report(pendulum_runs, tmp_path):
    out = tmp_path / "new" / "page.html"
    done = cru("report", pendulum_runs / "regression-f-cru", "--out", out, "--series", "1", "--title", "Mine")
    assert done.exit_code == 0, done.output
    assert "<title>Mine</title>" in out.read_text() and "Open it in any browser" in done.stdout
    assert "must end in .html" in refused("report", pendulum_runs, "--out", tmp_path / "x.pdf")
    assert "there is no folder" in refused("report", tmp_path / "nowhere", "--out", out)


def test_all_pictures_of_the_gallery_from_one_command(pendulum_runs, tmp_path, capsys):
    program = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "gallery.py"))
    program["main"](pendulum_runs, tmp_path, runtime=False)
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert drawn == {"gain-noise", "trajectory", "curves", "calibration", "gaps"}
    assert "gain-sparseness: there is no run of ushcn-sparseness" in capsys.readouterr().out
