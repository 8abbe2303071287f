import json
import shutil

import pytest

from cru.reporting import ledger
from cru.reporting.report_data import collect
from cru.training import settings_for


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
    said = regression["series"][0]["predictions"]
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
        settings = settings_for("pendulum-regression", "f-cru", seed=seed).as_dict()
        entries.append(entry | {"seed": seed, "run": f"full-{seed}", "settings": settings})
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

    monkeypatch.setattr("cru.reporting.run_folder.load_splits", missing)
    experiment = collect([pendulum_runs / "regression-f-cru"])["experiments"][0]
    assert experiment["series"] == [] and "the raw files are not here." in experiment["notes"][0]


def test_a_damaged_run_does_not_affect_the_others(pendulum_runs, tmp_path):
    for name in ("regression-f-cru", "regression-gru-dt"):
        shutil.copytree(pendulum_runs / name, tmp_path / name)
    weights = tmp_path / "regression-f-cru" / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    data = collect([tmp_path], series=2)
    healthy = next(run["id"] for run in data["runs"] if run["model"] == "gru-dt")
    (experiment,) = data["experiments"]
    assert [set(series["predictions"]) for series in experiment["series"]] == [{healthy}] * 2
    assert set(experiment["gaps"]) == {healthy}
    (note,) = experiment["notes"]
    assert note.startswith("pendulum-regression, f-cru, seed 0: no test series are shown.") and "truncated" in note


def changed_copy(source, to, **changes):
    """A run with other settings, as another run of the ledger."""
    shutil.copytree(source, to)
    for name in ("settings.json", "result.json"):
        content = json.loads((to / name).read_text())
        settings = content if name == "settings.json" else content["settings"]
        for key, value in changes.items():
            settings.update({key: settings[key] | value if isinstance(value, dict) else value})
        if name == "result.json":
            content |= {"run": to.name, "preset": settings["preset"]}
            content["series"]["test"] = settings["data"]["test"] or content["series"]["test"]
        (to / name).write_text(json.dumps(content))


def test_runs_on_other_data_are_named(pendulum_runs, tmp_path):
    for name in ("regression-f-cru", "regression-gru-dt"):
        shutil.copytree(pendulum_runs / name, tmp_path / name)
    changed_copy(pendulum_runs / "regression-f-cru", tmp_path / "fewer", data={"test": 3})
    (experiment,) = collect([tmp_path], series=1)["experiments"]
    assert "fewer" not in experiment["series"][0]["predictions"] and "fewer" in experiment["gaps"]
    (note,) = experiment["notes"]
    assert note == (
        "pendulum-regression, f-cru, seed 0: not in the test series below, because the data differ (data.test)."
    )


def test_runs_without_a_preset_are_of_one_experiment_where_their_data_are_the_same(pendulum_runs, tmp_path):
    source = pendulum_runs / "regression-f-cru"
    changed_copy(source, tmp_path / "a", preset=None)
    changed_copy(source, tmp_path / "b", preset=None, seed=1)
    assert [experiment["preset"] for experiment in collect([tmp_path], series=1)["experiments"]] == ["own"]
    changed_copy(source, tmp_path / "c", preset=None, data={"test": 3})
    data = collect([tmp_path], series=1)
    names = {run["id"]: run["preset"] for run in data["runs"]}
    assert names["a"] == names["b"] != names["c"] and "pendulum" in names["c"] and "regression" in names["c"]
    found = {experiment["preset"]: set(experiment["gaps"]) for experiment in data["experiments"]}
    assert found == {names["a"]: {"a", "b"}, names["c"]: {"c"}}


def test_a_ledger_is_found_below_and_taken_itself(pendulum_runs, tmp_path):
    ours = (pendulum_runs / "ledger.jsonl").read_text()
    for place, text in (
        ("results", ours),
        (".hidden", ours.replace('"run": "', '"run": "no')),
        ("other", '{"a": 1}\n'),
    ):
        (tmp_path / place).mkdir()
        (tmp_path / place / "ledger.jsonl").write_text(text)
    expected = {entry["run"] for entry in ledger.read(pendulum_runs / "ledger.jsonl")}
    for path in (tmp_path, tmp_path / "results" / "ledger.jsonl"):
        assert {run["id"] for run in collect([path])["runs"]} == expected and len(expected) == 3


def test_nothing_there(tmp_path):
    with pytest.raises(ValueError, match=r"no run and no ledger.jsonl in"):
        collect([tmp_path])
