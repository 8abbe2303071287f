import os
import shutil
import stat
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cru import Forecaster
from cru.files import is_temporary, open_regular, read_bounded, remove_leftovers, replacing, write_atomically
from cru.reporting import ledger
from cru.training.checkpoint import read_checkpoint, write_checkpoint
from tests.faults import end_at


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def table(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [(f"s{k}", float(t), rng.normal(), rng.normal()) for k in range(6) for t in range(8)]
    return pd.DataFrame(rows, columns=["id", "time", "x", "y"])


def fitted(seed: int, model: str = "mean", **options: object) -> Forecaster:
    forecaster = Forecaster(model, seed=seed, epochs=1, progress=False, minutes=None, options=options or None)
    return forecaster.fit(table(seed), id="id", time="time")


@pytest.fixture(scope="module")
def two() -> tuple[Forecaster, Forecaster]:
    return fitted(1), fitted(2)


def every_step(action, restore, check, least: int) -> int:
    """Run an action to each of its steps; afterwards ``check`` must hold, and the action itself must succeed."""
    step = 0
    while True:
        restore()
        done = end_at(step, action)
        check(done)
        if done:
            break
        step += 1
    assert step >= least
    return step


@pytest.fixture
def _no_fsync(monkeypatch):
    """A flush is still a step at which a process ends, but it costs nothing: the machine itself does not fail here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("_no_fsync")
@pytest.mark.parametrize(
    ("over", "history"),
    [
        (True, True),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, False, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_dies_while_it_saves_a_model(two, tmp_path, over, history):
    old, new = two
    answers = {1: old.forecast(horizon=2.0), 2: new.forecast(horizon=2.0)}
    folder, pristine = tmp_path / "model", tmp_path / "pristine"
    old.save(pristine)

    def restore():
        shutil.rmtree(folder, ignore_errors=True)
        if over:
            shutil.copytree(pristine, folder)

    def check(done):
        try:
            found = Forecaster.load(folder)
        except FileNotFoundError:
            assert not over and not done
            new.save(folder)  # what is left is no obstacle
            assert Forecaster.load(folder).seed == 2
        else:
            assert found.seed == 2 or not done
            if found.seed == 1 or history:
                pd.testing.assert_frame_equal(found.forecast(horizon=2.0), answers[found.seed])
            else:
                assert found.history_ is None
            new.save(folder)
        kinds = [path.name.partition("-")[0] for path in folder.iterdir()]
        assert sorted(kinds) == ["README.md", "config.json", "history", "model"]

    every_step(lambda: new.save(folder, history=history), restore, check, 20)


@pytest.mark.usefixtures("_no_fsync")
def test_a_process_that_dies_while_it_writes_a_checkpoint(tmp_path):
    path = tmp_path / "x.safetensors"

    def restore():
        write_checkpoint(path, {"a": torch.zeros(3)}, {"epoch": 1})

    def check(done):
        tensors, header = read_checkpoint(path)
        assert (header["epoch"], float(tensors["a"].sum())) in ([(2, 3.0)] if done else [(1, 0.0), (2, 3.0)])

    every_step(lambda: write_checkpoint(path, {"a": torch.ones(3)}, {"epoch": 2}), restore, check, 9)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("_no_fsync")
def test_a_process_that_dies_while_it_adds_to_the_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"

    def restore():
        path.unlink(missing_ok=True)
        ledger.append(path, {"run": "a"})

    def check(done):
        runs = [entry["run"] for entry in ledger.read_lines(path)]
        assert runs in ([["a", "b"]] if done else [["a"], ["a", "b"]])
        assert path.read_bytes().endswith(b"}\n")

    every_step(lambda: ledger.append(path, {"run": "b"}), restore, check, 9)


@pytest.mark.usefixtures("_no_fsync")
def test_a_process_that_dies_while_it_keeps_a_stream(tmp_path):
    forecaster, path = fitted(1, "gru", hidden_size=4), tmp_path / "state"
    old, new = forecaster.stream(), forecaster.stream()
    old.update("a", 1.0, {"x": 1.0})
    new.update("a", 1.0, {"x": 1.0})
    new.update("b", 2.0, {"y": 1.0})

    def restore():
        old.save(path)

    def check(done):
        assert len(forecaster.stream(state=path)) in ([2] if done else [1, 2])

    every_step(lambda: new.save(path), restore, check, 9)


def test_a_rename_comes_after_the_flush_of_the_file_and_before_that_of_the_folder(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def noted(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), replace(*paths)))
    write_atomically(tmp_path / "x", b"1")
    assert calls == ["file", "rename", "folder"]


def test_writers_in_many_threads_do_not_collide(tmp_path):
    def write(number):
        for _ in range(20):
            write_atomically(tmp_path / "x", bytes([number]) * 1000)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set((tmp_path / "x").read_bytes())) == 1 and names_in(tmp_path) == ["x"]


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    names = iter(["00" * 8, "11" * 8])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(names))
    (tmp_path / f".cru-{'00' * 8}.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "x", b"other")
    assert victim.read_text() == "mine"
    (tmp_path / "link").symlink_to(victim)
    write_atomically(tmp_path / "link", b"other")  # the link is replaced, not what it names
    assert victim.read_text() == "mine" and not (tmp_path / "link").is_symlink()


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    dead = tmp_path / f".cru-{'ab' * 8}.tmp"
    dead.write_bytes(b"half")
    with replacing(tmp_path / "x") as file:
        file.write(b"1")
        assert not dead.exists()
        remove_leftovers(tmp_path)
        assert sum(is_temporary(name) for name in names_in(tmp_path)) == 1
    assert names_in(tmp_path) == ["x"]


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bounded(tmp_path / "x", 5) == b"12345"
    with pytest.raises(ValueError, match="at most 4 bytes, got 5"):
        read_bounded(tmp_path / "x", 4)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(ValueError, match="must be a regular file"), open_regular(tmp_path / name):
            pass
    assert read_bounded(Path("/proc/self/status")) == b""  # no size, so nothing is waited for


def test_a_load_goes_on_while_another_process_saves(two, tmp_path, monkeypatch):
    import cru.forecaster.serialization as module

    old, new = two
    old.save(tmp_path / "m")
    read, calls = module.read_config, []

    def overtaken(folder):
        config = read(folder)
        if not calls:
            calls.append(1)
            new.save(folder)
        return config

    monkeypatch.setattr(module, "read_config", overtaken)
    assert Forecaster.load(tmp_path / "m").seed == 2
