import json
import re
import shutil

import numpy as np
import pytest

from cru.evaluation import evaluate
from cru.reporting.run_folder import find_folders, predict_test_series, read_folder
from cru.training import load_model, run
from cru.training.experiment import load_splits
from tests.training.tiny import tiny_settings, tiny_splits


def test_all_runs_below_a_folder_are_found_once(pendulum_runs):
    names = [folder.path.name for folder in find_folders([pendulum_runs])]
    assert names == ["interpolation-f-cru", "regression-f-cru", "regression-gru-dt"]
    assert len(find_folders([pendulum_runs, pendulum_runs / "regression-f-cru"])) == 3


def test_a_run_is_read_back(pendulum_runs):
    folder = read_folder(pendulum_runs / "regression-f-cru")
    assert folder.title == "pendulum-regression, f-cru, seed 0" and len(folder.log) == 2
    assert folder.record["run"] and folder.settings.training.epochs == 2


def test_the_predictions_of_the_page_give_the_score_of_the_ledger(pendulum_runs):
    for tested in predict_test_series(find_folders([pendulum_runs])):
        square = np.concatenate([((o.targets - o.mean) ** 2).ravel() for o in tested.predictions])
        score = tested.folder.record["scores"]["best"]["test"]["all"]["mse"]
        assert square.mean() == pytest.approx(score, rel=1e-5)
        assert tested.error_unit == ("–" if "regression" in tested.folder.title else "share of full brightness")


def test_runs_on_the_same_data_read_it_once(pendulum_runs, monkeypatch):
    calls = []

    def counted(*words, **options):
        calls.append(1)
        return load_splits(*words, **options)

    monkeypatch.setattr("cru.reporting.run_folder.load_splits", counted)
    folders = find_folders([pendulum_runs])[1:]
    assert len(list(predict_test_series(folders, count=1))) == 2 and len(calls) == 1


def test_names_of_what_is_predicted(pendulum_runs):
    tested = next(predict_test_series(find_folders([pendulum_runs / "regression-f-cru"]), count=1))
    names, units = tested.folder.target_names(tested.test)
    assert names == ("sine of the angle", "cosine of the angle") and units == ("–", "–")


def test_a_run_on_series_of_its_own_is_not_shown_with_others(tmp_path, pendulum_runs):
    """Its settings name a dataset whose test set is another."""
    from cru.training import DataSettings

    data = DataSettings(dataset="pendulum-interpolation", task="interpolation")
    settings = tiny_settings(epochs=1)
    settings = type(settings)(data=data, model=settings.model, training=settings.training)
    run(settings, tmp_path / "own", splits=tiny_splits())
    with pytest.raises(ValueError, match=r"trained on its own series.* of a, b. Its settings name 4 of image"):
        list(predict_test_series([read_folder(tmp_path / "own")]))
    assert evaluate(load_model(tmp_path / "own"), tiny_splits().test)["mse"] > 0
    folder = read_folder(tmp_path / "own")
    with pytest.raises(ValueError, match="trained on its own series"):
        folder.check(tiny_splits().test)  # even if they look like its own: nobody can tell


def test_folders_without_a_run(tmp_path):
    with pytest.raises(ValueError, match="there is no run in"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        find_folders([tmp_path / "nowhere"])
    (tmp_path / "settings.json").write_text(json.dumps({"data": {}})[:-3])
    with pytest.raises(ValueError, match="truncated or not JSON"):
        read_folder(tmp_path)


def test_settings_of_other_programs_are_passed_over(pendulum_runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(pendulum_runs / "regression-f-cru", run)
    shutil.copytree(run, tmp_path / ".trash" / "run")
    for name, text in (
        ("editor", '{"editor.tabSize": 2}'),
        ("comments", "// {}"),
        ("list", "[1]"),
        ("data", '{"data": 1}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings.json").write_text(text)
    assert [folder.path for folder in find_folders([tmp_path])] == [run]
    (run / "settings.json").write_text("{")  # of a run, so that it has to be said
    with pytest.raises(ValueError, match=rf"(?s)in {re.escape(str(run))} cannot be read.*is truncated"):
        find_folders([tmp_path])


def test_a_setting_that_is_not_known_is_said_with_its_file(tmp_path):
    (tmp_path / "settings.json").write_text('{"data": {}, "model": {}, "modle": 1}')
    with pytest.raises(
        ValueError,
        match=rf"{re.escape(str(tmp_path))}.settings.json must hold valid settings of a run\.\n.*no setting `modle`",
    ):
        find_folders([tmp_path])
