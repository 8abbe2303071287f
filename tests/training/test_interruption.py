"""Ctrl-C during a training: the first one keeps the best epoch, the second one stops."""

import os
import signal
import threading

import pytest

import cru
from cru.training.callbacks import Callback, StopOnInterrupt
from cru.training.loop import Loop
from cru.training.settings import TrainingSettings
from tests.training.tiny import tiny_splits


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class PressAt(Callback):
    """Press Ctrl-C after a step of an epoch, counted from 0."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.finished, self.steps = epoch, 0, 0

    def on_step(self, number: int, loss: float) -> None:
        self.steps += 1
        if self.finished == self.epoch and number == 1:
            press()

    def on_epoch(self, record, *, better: bool) -> None:
        self.finished = record["epoch"]


def train(callback: Callback) -> Loop:
    splits = tiny_splits()
    model = cru.models.create("f-cru", cru.models.spec_of(splits.train), hidden_size=4, num_basis=2)
    settings = TrainingSettings(epochs=5, batch_size=4)
    loop = Loop(settings, model, splits.train, splits.validation, callback=callback)
    loop.run()
    return loop


def test_the_first_one_ends_the_loop_at_once_and_keeps_the_complete_epochs(capsys) -> None:
    watched = PressAt(2)
    with StopOnInterrupt(watched) as callback:
        loop = train(callback)
    assert loop.progress.epoch == 2 and watched.steps == 2 * loop.batches + 1
    assert (
        callback.warning == "Ctrl-C ended the training after 2 of 5 epochs. The model has the best weights so far."
    )
    assert capsys.readouterr().err == (
        "\nThe training ends after 2 complete epochs. Press Ctrl-C again to stop without a result.\n"
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_one_stops() -> None:
    with pytest.raises(KeyboardInterrupt), StopOnInterrupt(PressAt(1)) as callback:
        train(callback)
        press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_before_the_training_it_stops_and_after_it_nothing_is_lost(capsys) -> None:
    with pytest.raises(KeyboardInterrupt), StopOnInterrupt() as callback:
        press()
    with StopOnInterrupt() as callback:
        loop = train(callback)
        press()
        assert loop.progress.epoch == 5 and callback.warning is None
    assert "The calibration continues." in capsys.readouterr().err


def test_other_handlers_and_threads_are_left_alone() -> None:
    own = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGINT, own)
    try:
        with StopOnInterrupt():
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    found = []
    thread = threading.Thread(target=lambda: found.append(train(StopOnInterrupt().__enter__()).progress.epoch))
    thread.start()
    thread.join()
    assert found == [5] and signal.getsignal(signal.SIGINT) is before
