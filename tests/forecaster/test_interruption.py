"""Ctrl-C during `fit`: both kinds of training keep the best epoch, and the forecaster is complete."""

import os
import signal

import pytest

from cru import Forecaster
from cru.training.callbacks import Callback
from tests.forecaster.conftest import stations

COLUMNS = {"id": "station", "time": "date"}


class PressAfter(Callback):
    """Press Ctrl-C when an epoch is done, or at the start for 0."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.finished = epoch, 0

    def on_start(self, epochs: int, batches: int, history: list) -> None:
        if self.epoch == 0:
            os.kill(os.getpid(), signal.SIGINT)

    def on_epoch(self, record, *, better: bool) -> None:
        self.finished = record["epoch"]
        if self.finished == self.epoch:
            os.kill(os.getpid(), signal.SIGINT)


def interrupted(model: Forecaster, monkeypatch, epoch: int) -> PressAfter:
    callback = PressAfter(epoch)
    monkeypatch.setattr(model, "_callback", lambda: callback)
    return callback


@pytest.mark.parametrize("name", ["mlp", "cru"])
def test_the_best_epoch_is_kept_and_calibrated(name: str, monkeypatch, short_fit) -> None:
    model = Forecaster(name, epochs=50, progress=False)
    callback = interrupted(model, monkeypatch, 2)
    with pytest.warns(UserWarning, match="Ctrl-C ended the training after 2 of 50 epochs"):
        model.fit(stations(30, 20), **COLUMNS)
    assert callback.finished == 2
    assert model.calibration_.measured and "coverage90" in model.scores_
    assert len(model.forecast(horizon="3D", every="1D")) == 30 * 3 * 2


def test_without_a_complete_epoch_the_structural_model_is_kept(monkeypatch, short_fit) -> None:
    table = stations(40, 30)
    model = Forecaster("paired", epochs=50, progress=False)
    interrupted(model, monkeypatch, 0)
    with pytest.warns(UserWarning, match="after 0 of 50 epochs"):
        model.fit(table, **COLUMNS)
    row = model.scores_["table"][0]
    assert row["model"] == row["structural"]


def test_without_a_complete_epoch_a_model_alone_is_not_fitted(monkeypatch) -> None:
    model = Forecaster("cru", base=None, epochs=50, progress=False)
    interrupted(model, monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(stations(30, 20), **COLUMNS)
    assert not hasattr(model, "model_")
