import copy
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cru import Forecaster
from cru.forecaster.serialization import fingerprint
from cru.training import load_model


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    trained.save(tmp_path / "model")
    return tmp_path / "model"


def refused(folder: Path, *words: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        Forecaster.load(folder)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_what_is_loaded_says_the_same(trained, folder):
    loaded = Forecaster.load(folder)
    pd.testing.assert_frame_equal(loaded.forecast(horizon="9D"), trained.forecast(horizon="9D"))
    assert loaded.get_params() == trained.get_params() and loaded.scores_ == trained.scores_
    assert fingerprint(loaded) == fingerprint(trained)
    names = [re.sub("-[0-9a-f]{16}", "", path.name) for path in folder.iterdir()]
    assert sorted(names) == ["README.md", "config.json", "history.npz", "model.safetensors"]


def test_another_process_says_the_same(trained, folder):
    program = f"from cru import Forecaster; print(Forecaster.load({str(folder)!r}).forecast(horizon='3D').to_csv())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.strip() == trained.forecast(horizon="3D").to_csv().strip()


def test_the_card_has_the_scores(trained, folder):
    card = (folder / "README.md").read_text()
    assert f"{trained.scores_['r2']:.3f}" in card and "`high`, `low`" in card and "holds the observations" in card


def test_without_the_observations(trained, folder):
    trained.save(folder, history=False)  # over the one that is there
    loaded = Forecaster.load(folder)
    assert not list(folder.glob("history*")) and "no observations" in (folder / "README.md").read_text()
    with pytest.raises(ValueError, match="`table` must be given: this model was saved without"):
        loaded.forecast(horizon="9D")


@pytest.mark.parametrize("kind", ["config.json", "history-*.npz", "model-*.safetensors"])
def test_missing_and_altered_files(folder, kind):
    (name,) = (path.name for path in folder.glob(kind))
    whole = (folder / name).read_bytes()
    middle = len(whole) // 2
    (folder / name).write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    refused(folder, name)
    (folder / name).write_bytes(whole[:middle])
    refused(folder, name)
    (folder / name).unlink()
    refused(folder, f"there is no {name}")


def test_a_changed_number_in_the_configuration(folder):
    config = json.loads((folder / "config.json").read_text())
    config["scaler"]["scale"][0] *= 2
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "config.json was altered or damaged")


def test_a_folder_of_a_newer_version(folder):
    config = json.loads((folder / "config.json").read_text()) | {"format": 99, "version": "7.1.0", "news": True}
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "saved by cru 7.1.0", "newer than this one")
    (folder / "config.json").write_text(json.dumps(config | {"format": 1, "version": "0.0.1"}))
    refused(folder, "of cru 0.0.1", "Fit the model again")


def test_what_is_no_model_folder(folder, tmp_path, trained):
    refused(tmp_path / "nowhere", "there is no model folder")
    refused(tmp_path, "not the complete folder of a model")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"my": "app"}')
    for place in (tmp_path / "notes", tmp_path / "notes" / "mine.txt", tmp_path / "other"):
        with pytest.raises(ValueError, match="must be a new or empty folder"):
            trained.save(place)


def test_parameters_that_were_changed_after_the_fit(trained, repeater, tmp_path):
    changed = copy.copy(trained).set_params(model="gru-dt", seed=np.int64(3))
    changed.save(tmp_path / "model")
    loaded = Forecaster.load(tmp_path / "model")
    assert (loaded.model, loaded.seed) == ("gru-dt", 3)
    pd.testing.assert_frame_equal(loaded.forecast(horizon="3D"), trained.forecast(horizon="3D"))
    assert "`cru` with" in (tmp_path / "model" / "README.md").read_text()


def test_what_cannot_be_saved_leaves_no_trace(trained, folder, tmp_path):
    odd = copy.copy(trained).set_params(options={"num_basis": object()})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for place in (folder, tmp_path / "new"):
        with pytest.raises(ValueError, match="the parameters must be values that JSON can represent"):
            odd.save(place)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before and not (tmp_path / "new").exists()


def test_a_fingerprint_knows_the_clock_and_the_options(trained):
    other = copy.copy(trained)
    other.clock_ = dataclasses.replace(trained.clock_, unit="h")
    third = copy.copy(trained)
    third.options_ = trained.options_ | {"num_basis": 4}
    assert len({fingerprint(model) for model in (trained, other, third)}) == 3


def test_a_save_that_fails_leaves_the_older_model(trained, repeater, tmp_path, monkeypatch):
    trained.save(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("cru.forecaster.serialization.write_series", full)
    with pytest.raises(OSError, match="no space left"):
        repeater.save(tmp_path / "model")
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    repeater.save(tmp_path / "model", history=False)
    loaded = Forecaster.load(tmp_path / "model")
    assert loaded.name_ == "last-value" and loaded.history_ is None


def test_a_subclass_is_loaded_as_itself(folder):
    class Mine(Forecaster):
        pass

    assert type(Mine.load(folder)) is Mine


def test_the_weights_are_no_run(folder):
    with pytest.raises(ValueError, match="is not a checkpoint of a run"):
        load_model(next(folder.glob("model-*")))
