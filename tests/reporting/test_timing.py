"""Seconds of an epoch, with a clock of the test's own: no test depends on the speed of the machine."""

import pytest
import torch

from cru.reporting import timing
from cru.reporting.timing import add_seconds, measure_epoch, measure_presets, read_seconds
from cru.training import loop
from tests.training.tiny import tiny_settings, tiny_splits


@pytest.fixture
def clock(monkeypatch):
    """Each batch takes a second and each validation 1000; the very first batch takes 50 more."""
    passed = []
    step, evaluate = loop.Loop._step, loop.evaluate

    def timed_step(self, *words):
        assert torch.get_num_threads() == 1
        passed.append(1 if passed else 51)
        return step(self, *words)

    def timed_evaluate(*words, **options):
        passed.append(1000)
        return evaluate(*words, **options)

    monkeypatch.setattr(loop.Loop, "_step", timed_step)
    monkeypatch.setattr(loop, "evaluate", timed_evaluate)
    monkeypatch.setattr("time.process_time", lambda: float(sum(passed)))
    return passed


def test_the_fastest_epoch_counts_without_its_validation(clock):
    splits = tiny_splits()
    settings = tiny_settings(epochs=100, batch_size=5, patience=1, minutes=1e-9)
    assert measure_epoch(settings, splits) == -(-len(splits.train) // 5)
    assert clock.count(1000) == timing.EPOCHS


def test_the_threads_of_the_caller_come_back(clock):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure_epoch(tiny_settings(), tiny_splits(), epochs=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_models_that_train_share_the_data(monkeypatch):
    loaded, measured = [], []
    monkeypatch.setattr(timing, "load_splits", lambda settings, data_dir: loaded.append(settings.preset))
    monkeypatch.setattr(timing, "measure_epoch", lambda settings, splits, epochs: measured.append(settings) or 2.0)
    found = dict(measure_presets(["ushcn-interpolation", "pendulum-regression"]))
    assert loaded == ["ushcn-interpolation", "pendulum-regression"]
    assert {"cru", "mtand", "paired"} <= found["ushcn-interpolation"].keys() and "mean" not in found[
        "pendulum-regression"
    ]
    assert dict(measure_presets(["pendulum-regression"], ["gru"])) == {"pendulum-regression": {"gru": 2.0}}


def test_what_was_measured_is_kept_by_experiment(tmp_path):
    path = tmp_path / "new" / "seconds.json"
    assert read_seconds(path) == {}
    for preset, seconds in (("a", {"cru": 1.0, "gru": 9.0}), ("b", {"cru": 2.0}), ("a", {"cru": 3.0})):
        add_seconds(path, preset, seconds)
    assert read_seconds(path) == {("a", "cru"): 3.0, ("b", "cru"): 2.0}
    for wrong in ('{"a": 1}', '{"a": {"cru": []}}'):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="must hold seconds by preset and model"):
            read_seconds(path)
