import json
import shutil

import pytest

from cru.evaluation import ledger
from cru.training.report import collect


@pytest.fixture
def data(pendulum_runs):
    return collect([pendulum_runs], series=2)


def test_every_run_of_the_ledger_with_its_scores_to_the_last_digit(data, pendulum_runs):
    entries = {entry["run"]: entry for entry in ledger.read(pendulum_runs / "ledger.jsonl")}
    assert {run["id"] for run in data["runs"]} == set(entries) and len(entries) == 3
    for run in data["runs"]:
        test = entries[run["id"]]["scores"]["best"]["test"]
        assert run["test"]["mse"] == test[test["scored"]]["mse"] and run["scored"] == test["scored"]


def test_curves_are_those_of_the_logs(data, pendulum_runs):
    for run in data["runs"]:
        name = f"{run['preset'].removeprefix('pendulum-')}-{run['model']}"
        log = [json.loads(line) for line in (pendulum_runs / name / "log.jsonl").read_text().splitlines()]
        assert run["curve"]["epoch"] == [1, 2]
        assert run["curve"]["mse"] == pytest.approx([line["validation"]["all"]["mse"] for line in log], rel=1e-4)


def test_experiments_in_the_order_of_the_paper_with_series_of_all_their_models(data):
    interpolation, regression = data["experiments"]
    assert interpolation["preset"] == "pendulum-interpolation" and regression["preset"] == "pendulum-regression"
    assert [len(experiment["series"]) for experiment in data["experiments"]] == [2, 2]
    said = regression["series"][0]["said"]
    assert set(said) == {run["id"] for run in data["runs"] if run["preset"] == "pendulum-regression"}
    gains = {run["model"]: said[run["id"]]["gain"] for run in data["runs"] if run["id"] in said}
    assert gains["gru-dt"] is None and len(gains["f-cru"]) == 50
    assert regression["paper"]["mse"]["cru"] == pytest.approx([4.626e-3, 1.072e-3])
    assert interpolation["calibration"] == {} and len(regression["calibration"]) == 2


def test_shortened_runs_are_not_set_beside_the_paper(data):
    assert data["tables"] == [] and all(run["changed"] for run in data["runs"])


def test_full_runs_are(pendulum_runs, tmp_path):
    """From a ledger alone, with the mean and the spread over seeds."""
    entries = []
    for seed, mse in enumerate((0.004, 0.006)):
        entry = ledger.read(pendulum_runs / "ledger.jsonl")[0]
        entry["scores"]["best"]["test"]["all"]["mse"] = mse
        entries.append(entry | {"changed": [], "seed": seed, "run": f"full-{seed}"})
    for entry in entries:
        ledger.append(tmp_path / "ledger.jsonl", entry)
    data = collect([tmp_path])
    table = data["tables"][0]
    cell = next(row for row in table["rows"] if row["model"] == "f-cru")["cells"]["pendulum-regression"]
    assert cell["ours"]["mean"] == pytest.approx(5.0) and cell["ours"]["std"] == pytest.approx(2**0.5)
    assert cell["paper"] == [6.155, 0.881] and cell["mark"] == "inside" and table["number"] == 2
    assert data["experiments"][0]["series"] == []


def test_an_unfinished_run_is_shown_as_far_as_it_came(pendulum_runs, tmp_path):
    shutil.copytree(pendulum_runs / "regression-f-cru", tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    (run,) = collect([tmp_path], series=1)["runs"]
    assert run["finished"] is None and run["test"] == {} and len(run["curve"]["mse"]) == 2


def test_a_page_without_series_says_why(pendulum_runs, tmp_path, monkeypatch):
    def missing(*words, **options):
        raise FileNotFoundError("the raw files are not here.")

    monkeypatch.setattr("cru.training.folder.load_splits", missing)
    experiment = collect([pendulum_runs / "regression-f-cru"])["experiments"][0]
    assert experiment["series"] == [] and "the raw files are not here." in experiment["notes"][0]


def test_nothing_there(tmp_path):
    with pytest.raises(ValueError, match=r"no run and no ledger.jsonl in"):
        collect([tmp_path])
