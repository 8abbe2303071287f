"""Forged files: each field of each file is changed, with checksums made right. A file is data and never more."""

import json
import resource
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cru import Forecaster
from cru.reporting.run_folder import read_folder
from cru.training import load_model, run
from cru.training.checkpoint import read_checkpoint
from tests.cli.helpers import refused
from tests.forging import (
    EVIL,
    array_changes,
    changes_of,
    checkpoint_bytes,
    in_time,
    one_sentence,
    replace_part,
    series_bytes,
    tensor_changes,
    unpacked,
    write_config,
)
from tests.test_files import fitted
from tests.training.tiny import tiny_settings, tiny_splits

RUN = tiny_settings("gru", epochs=1)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """Models of two kinds, a state and a run."""
    root = tmp_path_factory.mktemp("pristine")
    fitted(1, "mean").save(root / "mean")
    streaming = fitted(1, "gru", hidden_size=4)
    streaming.save(root / "gru")
    stream = streaming.stream()
    stream.update("a", 1.0, {"x": 1.0})
    stream.update("b", 2.0, {"y": 1.0})
    stream.save(root / "state")
    run(RUN, root / "run", splits=tiny_splits())
    return root


@pytest.fixture
def copies(pristine, tmp_path, monkeypatch):
    """A fresh copy for each case, in a folder where the module that a forger names lies ready."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_module.py").write_text("open('fired', 'w').close()\nclass Model: pass\n")

    def copy(name: str) -> Path:
        place = tmp_path / name
        if (pristine / name).is_dir():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(pristine / name, place)
        else:
            shutil.copy(pristine / name, place)
        return place

    yield copy
    assert "evil_module" not in sys.modules and not (tmp_path / "fired").exists()


def use(folder: Path) -> None:
    forecaster = Forecaster.load(folder)
    if forecaster.history_ is not None:
        answers = forecaster.forecast(horizon=2.0, every=1.0)
        numbers = np.stack([answers[name].to_numpy() for name in ("mean", "std", "lo-90", "hi-90")], 1)
        assert np.isfinite(numbers).all() and (numbers[:, 1] >= 0).all() and (numbers[:, 2] <= numbers[:, 3]).all()


def attempt(name: str, action) -> bool:
    """Whether a forged file was taken. An error must be one sentence, and nothing may hang."""
    with in_time():
        try:
            action()
        except Exception as error:
            assert one_sentence(error), f"{name}: {type(error).__name__}: {error!s:.300}"
            return False
    return True


def test_every_field_of_the_configuration(copies):
    folder, count = copies("mean"), 0
    config = json.loads((folder / "config.json").read_text())
    for name, changed in changes_of(config):
        write_config(folder, changed)
        attempt(name, lambda: use(folder))
        count += 1
    assert count > 1000


def test_every_option_and_tensor_of_the_weights(copies):
    folder = copies("gru")
    config = json.loads((folder / "config.json").read_text())
    for name, options in changes_of(config["options"]):
        write_config(folder, config | {"options": options})
        attempt(name, lambda: use(folder))
    write_config(folder, config)
    tensors, _ = unpacked(next(folder.glob("model-*")).read_bytes())
    for name, changed in tensor_changes(tensors):
        replace_part(folder, "model.safetensors", checkpoint_bytes(changed, {}))
        attempt(name, lambda: use(folder))


def test_every_array_and_label_of_the_history(copies):
    folder = copies("mean")
    with np.load(next(folder.glob("history-*"))) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    cases = [(name, arrays, changed) for name, changed in changes_of(header)]
    for key, array in arrays.items():
        cases += [(f"{key} {what}", arrays | {key: a}, header) for what, a in array_changes(array)]
        cases += [(f"{key} removed", {k: a for k, a in arrays.items() if k != key}, header)]
    cases += [("extra", arrays | {"extra": np.zeros(2)}, header), ("../x", arrays | {"../x": np.zeros(2)}, header)]
    for name, forged, said in cases:
        replace_part(folder, "history.npz", series_bytes(forged, said))
        attempt(name, lambda: use(folder))
    for key in ("times", "ids", "offsets"):  # no change of these is harmless
        replace_part(folder, "history.npz", series_bytes(arrays | {key: arrays[key][::-1].copy()[:-1]}, header))
        assert not attempt(key, lambda: use(folder))


def test_every_field_and_tensor_of_a_stream_state(copies, pristine):
    forecaster, path = Forecaster.load(pristine / "gru"), copies("state")
    tensors, header = unpacked(path.read_bytes())

    def go_on() -> None:
        stream = forecaster.stream(state=path)
        for name in stream.names:
            said = stream.predict(name, 3.0)
            assert all(np.isfinite(list(numbers.values())).all() for numbers in said.values())
        stream.update("c", 3.0, {"x": 1.0})

    go_on()
    for name, changed in changes_of(header):
        path.write_bytes(checkpoint_bytes(tensors, changed))
        attempt(name, go_on)
    for name, changed in tensor_changes(tensors):
        path.write_bytes(checkpoint_bytes(changed, header))
        attempt(name, go_on)
    for ids in (["a"], ["a", "b", "c"], ["a", "a"]):
        path.write_bytes(checkpoint_bytes(tensors, header | {"ids": ids}))
        assert not attempt(str(ids), go_on)


@pytest.mark.parametrize("file", ["settings.json", pytest.param("result.json", marks=pytest.mark.slow), "log.jsonl"])
def test_every_field_of_a_run(copies, file):
    folder = copies("run")
    content = json.loads((folder / file).read_text())  # the log has one line
    for name, changed in changes_of(content):
        (folder / file).write_text(json.dumps(changed) + "\n")
        attempt(name, lambda: read_folder(folder))


def test_every_field_of_a_checkpoint(copies):
    path = copies("run") / "best.safetensors"
    tensors, header = unpacked(path.read_bytes())
    for name, changed in changes_of(header):
        path.write_bytes(checkpoint_bytes(tensors, changed))
        attempt(name, lambda: load_model(path))


@pytest.mark.parametrize("name", ["mean", "gru", "run"])
def test_what_is_not_forged_is_taken(copies, name):
    """Else the tests of this file could not fail."""
    folder = copies(name)
    if name == "run":
        assert read_folder(folder).record is not None and load_model(folder).num_parameters
        (folder / "result.json").unlink()
        assert run(RUN, folder, splits=tiny_splits(), resume=True)["epochs"] == 1
    else:
        use(folder)
        write_config(folder, json.loads((folder / "config.json").read_text()))
        use(folder)


def test_a_run_whose_last_checkpoint_is_forged_does_not_go_on(copies):
    folder = copies("run")
    (folder / "result.json").unlink()
    tensors, header = read_checkpoint(folder / "last.safetensors")
    cases = [(tensors, header | {"progress": header["progress"] | {"epoch": 7}})]
    optimizer = next(name for name in tensors if name.startswith("optimizer.") and tensors[name].dim())
    cases += [(tensors | {optimizer: tensors[optimizer][:1] * float("nan")}, header)]
    cases += [(tensors | {"optimizer.99.exp_avg": tensors[optimizer]}, header)]
    for forged, said in cases:
        (folder / "last.safetensors").write_bytes(checkpoint_bytes(forged, said))
        assert not attempt("resume", lambda: run(RUN, folder, splits=tiny_splits(), resume=True))


@pytest.mark.parametrize("where", ["model", "params.model"])
def test_a_module_is_imported_only_when_it_is_allowed(copies, where, tmp_path):
    folder = copies("mean")
    config = json.loads((folder / "config.json").read_text())
    holder = config if where == "model" else config["params"]
    holder["model"] = EVIL
    write_config(folder, config)
    with pytest.raises(ValueError, match=r"'evil_module:Model', which would import and run the module 'evil_module'"):
        Forecaster.load(folder)
    out = tmp_path / "x.csv"
    words = [["forecast", folder, "--horizon", "2", "--out", out], ["impute", folder, "--out", out]]
    words += [["plot", folder, out], ["stream", folder]]
    for command in words:
        assert "evil_module" in refused(*command)


def test_files_that_unpack_to_more_than_they_hold(copies, tmp_path):
    folder = copies("mean")
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, header=np.zeros(200_000_000, np.uint8))  # 200 MB in 200 kB
    replace_part(folder, "history.npz", bomb.read_bytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="it is compressed"):
        Forecaster.load(folder)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr("header.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    replace_part(folder, "history.npz", bomb.read_bytes())
    with pytest.raises(ValueError, match="declares the shape"):
        Forecaster.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


def test_a_configuration_that_names_other_files(copies):
    folder = copies("mean")
    config = json.loads((folder / "config.json").read_text())
    for name in ("/proc/kmsg", "../x", "README.md"):
        write_config(folder, config | {"files": config["files"] | {name: "0" * 64}})
        with pytest.raises(ValueError, match="`files` must be"), in_time():
            Forecaster.load(folder)


def test_json_that_is_nested_without_end(copies):
    folder = copies("mean")
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"format": ' + "9" * 100_000 + "}", "\x00", ""):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config\.json"), in_time():
            Forecaster.load(folder)
