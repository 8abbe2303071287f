import json

import pytest

from cru.reporting import ledger
from cru.reporting import reproduction as module
from cru.reporting.paper_tables import paper_seconds
from cru.reporting.reproduction import Group, missing, missing_in, reproduce
from cru.training import settings_for
from cru.training.experiment import data_version


def done(preset, model, seed, seconds=3.0):
    settings = settings_for(preset, model, seed=seed)
    tested = {"epoch": 1, "test": {"scored": "all", "all": {"mse": 0.1}, "hidden": {}}}
    return {"run": f"{preset}{model}{seed}", "preset": preset, "model": model, "seed": seed, "hash": settings.hash} | {
        "scores": {"best": tested, "last": tested},
        "epochs": 1,
        "seconds_per_epoch": seconds,
        "parameters": 1,
        "series": {"test": 1},
        "changed": [],
        "shortened": False,
        "data_version": data_version(settings),
        "settings": settings.as_dict(),
    }


def finish(home, settings, **more):
    """A finished run in a folder."""
    scores = {"epoch": 1, "test": {"scored": "all", "all": {"mse": 1.0}, "hidden": {"mse": 1.0}}}
    record = done(settings.preset, settings.model.name, settings.seed) | {"settings": settings.as_dict()}
    record |= {"scores": {"best": scores, "last": scores}, "epochs": 1, "parameters": 1, "series": {"test": 1}}
    home.mkdir(parents=True, exist_ok=True)
    (home / "result.json").write_text(json.dumps(record | {"shortened": False} | more))


def names(cells):
    return [(cell.settings.preset, cell.settings.model.name, cell.settings.seed) for cell in cells]


def test_cheapest_missing_first_and_what_the_ledger_has_is_skipped(tmp_path):
    book = tmp_path / "ledger.jsonl"
    ledger.append(book, done("pendulum-regression", "gru", 0))
    ledger.append(book, done("pendulum-regression", "cru", 5, seconds=9.0))
    found = missing(["pendulum-regression"], ["cru", "gru", "mean"], seeds=2, ledger_path=book, folder=tmp_path)
    assert names(found) == [
        ("pendulum-regression", "mean", 0),
        ("pendulum-regression", "gru", 1),
        ("pendulum-regression", "cru", 0),
        ("pendulum-regression", "cru", 1),
    ]
    assert [cell.seconds for cell in found] == [0, 300, 900, 900]  # as measured


def test_what_was_not_measured_is_expected_from_what_was(tmp_path):
    def seconds():
        return missing(["ushcn-interpolation"], ["cru"], seeds=1, ledger_path=book, folder=tmp_path)[0].seconds

    book = tmp_path / "ledger.jsonl"
    paper = paper_seconds("ushcn-interpolation", "cru")
    assert seconds() == pytest.approx(100 * paper)
    ledger.append(book, done("pendulum-regression", "gru", 0, seconds=paper_seconds("pendulum-regression", "gru") / 4))
    assert seconds() == pytest.approx(100 * paper / 4)  # the paper's, at the pace of the ledger
    ledger.append(book, done("ushcn-interpolation", "gru", 0, seconds=7.0))
    assert seconds() == pytest.approx(700)  # another model here
    ledger.append(book, done("ushcn-extrapolation", "cru", 0, seconds=5.0))
    assert seconds() == pytest.approx(500)  # this one on the same series
    ledger.append(book, done("ushcn-interpolation", "cru", 1, seconds=6.0))
    assert seconds() == pytest.approx(600)  # this one here


def test_a_folder_from_before_the_preset_was_changed_is_left_alone(tmp_path):
    home = tmp_path / "pendulum-regression" / "gru-0"
    finish(home, settings_for("pendulum-regression", "gru", changes=["training.learning_rate=0.5"]))
    (cell,) = missing(["pendulum-regression"], ["gru"], seeds=1, ledger_path=tmp_path / "none", folder=tmp_path)
    assert cell.folder.parent == home.parent and cell.folder.name == f"gru-0-{cell.settings.hash[:8]}"


def test_a_shortened_run_does_not_count_as_done(tmp_path):
    book = tmp_path / "ledger.jsonl"
    short = settings_for("pendulum-regression", "gru", changes=["training.epochs=2"])
    ledger.append(book, done("pendulum-regression", "gru", 0) | {"hash": short.hash})
    assert len(missing(["pendulum-regression"], ["gru"], seeds=1, ledger_path=book, folder=tmp_path)) == 1


def test_the_whole_grid_and_unknown_names(tmp_path):
    grid = missing(seeds=1, ledger_path=tmp_path / "none", folder=tmp_path)
    assert {cell.settings.preset for cell in grid} == set(module.paper_presets())
    with pytest.raises(ValueError, match="did you mean 'cru'"):
        missing(models=["crue"], ledger_path=tmp_path / "none", folder=tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'ushcn-one-step'"):
        missing(["ushcn-onestep"], ledger_path=tmp_path / "none", folder=tmp_path)


@pytest.fixture
def scripts(monkeypatch):
    """Each cell runs a small script instead of an experiment."""
    import subprocess
    import sys

    def use(code):
        def start(cell, ledger_path, data_dir):
            cell.folder.mkdir(parents=True, exist_ok=True)
            with (cell.folder / "output.txt").open("wb") as output:
                words = [sys.executable, "-c", code, str(cell.folder), cell.settings.model.name]
                return subprocess.Popen(words, stdout=output, stderr=output)

        monkeypatch.setattr(module, "_start", start)

    return use


def test_failures_are_reported_and_do_not_stop_the_others(tmp_path, scripts):
    scripts("import sys; sys.exit('cru: it broke' if sys.argv[2] == 'gru' else 0)")
    cells = missing(["pendulum-regression"], ["gru", "cru"], seeds=1, ledger_path=tmp_path / "l", folder=tmp_path)
    lines = []
    assert reproduce(cells, hours=0.1, jobs=2, say=lines.append) == ["pendulum-regression gru seed 0"]
    assert "FAILED pendulum-regression gru seed 0: cru: it broke" in lines
    assert any(line.startswith("done   pendulum-regression cru seed 0") for line in lines)


def test_the_time_budget_stops_what_is_under_way(tmp_path, scripts):
    scripts("import time; time.sleep(60)")
    cells = missing(["pendulum-regression"], ["gru", "cru"], seeds=1, ledger_path=tmp_path / "l", folder=tmp_path)
    lines = []
    assert reproduce(cells, hours=1 / 3600, jobs=1, say=lines.append) == []
    assert lines[-1] == "stop   pendulum-regression gru seed 0: its last epoch is stored"


def test_a_real_cell_from_start_to_ledger(tmp_path, monkeypatch, ushcn_dir):
    """A naive model, in its own process; called again, there is nothing to do."""
    monkeypatch.setenv("CRU_CACHE_DIR", str(tmp_path / "cache"))
    book, where = tmp_path / "ledger.jsonl", {"ledger_path": tmp_path / "ledger.jsonl", "folder": tmp_path / "runs"}
    cells = missing(["ushcn-interpolation"], ["mean"], seeds=1, **where)
    assert reproduce(cells, hours=0.2, ledger_path=book, data_dir=ushcn_dir) == []
    entry = json.loads(book.read_text())
    assert (entry["preset"], entry["model"], entry["changed"]) == ("ushcn-interpolation", "mean", [])
    assert entry["scores"]["best"]["test"]["all"]["mse"] == pytest.approx(1 / 12, abs=0.02)  # of uniform numbers
    assert missing(["ushcn-interpolation"], ["mean"], seeds=1, **where) == []


def test_a_run_on_earlier_data_does_not_count_as_done(tmp_path):
    book = tmp_path / "ledger.jsonl"
    earlier = done("ushcn-interpolation", "gru", 0)
    del earlier["data_version"]  # from before it was recorded
    ledger.append(book, earlier)
    ledger.append(book, done("pendulum-regression", "gru", 0) | {"data_version": 1})
    wanted = ["ushcn-interpolation", "pendulum-regression"]
    found = missing(wanted, ["gru"], seeds=1, ledger_path=book, folder=tmp_path)
    assert names(found) == [("ushcn-interpolation", "gru", 0)]


def test_the_folder_of_a_run_on_earlier_data_is_left_alone(tmp_path):
    home = tmp_path / "ushcn-interpolation" / "gru-0"
    for version, left_alone in ((1, True), (2, False)):
        finish(home, settings_for("ushcn-interpolation", "gru"), data_version=version)
        (cell,) = missing(["ushcn-interpolation"], ["gru"], seeds=1, ledger_path=tmp_path / "none", folder=tmp_path)
        assert (cell.folder != home) == left_alone


def test_groups_come_one_after_another(tmp_path):
    groups = [Group.parse(text) for text in ("ushcn-interpolation:gru:2", "ushcn-interpolation:gru,mean")]
    found = missing_in(groups, ledger_path=tmp_path / "none", folder=tmp_path)
    assert names(found) == [("ushcn-interpolation", name, seed) for name, seed in (("gru", 0), ("gru", 1), ("mean", 0))]
    assert Group.parse("") == ([], [], 1)
    for wrong in ("a:b:c", "a:b:1:d"):
        with pytest.raises(ValueError, match="`groups` must have the form PRESETS:MODELS:SEEDS"):
            Group.parse(wrong)
