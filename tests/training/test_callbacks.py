import io
import sys
import types

from cru.training import run
from cru.training.callbacks import BarProgress, Callback, LineProgress, TensorBoard, make_progress_callback
from tests.test_progress import Terminal
from tests.training.tiny import tiny_settings, tiny_splits


def test_a_pipe_gets_one_line_an_epoch_if_asked_for(tmp_path):
    text = io.StringIO()
    assert type(make_progress_callback("x", stream=text)) is Callback
    callback = make_progress_callback("x", stream=text, lines=True)
    assert isinstance(callback, LineProgress)
    run(tiny_settings(epochs=3), tmp_path / "r", splits=tiny_splits(), callback=callback)
    lines = text.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all("loss" in line and "validation mse" in line and "left 0:00:0" in line for line in lines)


def test_a_terminal_gets_a_bar_that_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("cru.progress.REFRESH", 0.0)
    terminal = Terminal()
    callback = make_progress_callback("f-cru", stream=terminal)
    assert isinstance(callback, BarProgress)
    callback.on_stage("preparation")
    run(tiny_settings(epochs=2), tmp_path / "r", splits=tiny_splits(), callback=callback)
    drawn = terminal.getvalue().split("\r")
    assert "f-cru  preparation" in drawn
    last = drawn[-1]
    assert "epoch 2/2  loss " in last and "best mse " in last and "left 0:00:00" in last and last.endswith("\n")
    assert max(map(len, drawn)) <= 80


def test_the_bar_shows_the_best_epoch_and_the_limit(monkeypatch):
    monkeypatch.setattr("cru.progress.REFRESH", 0.0)
    terminal = Terminal()
    callback = BarProgress("fit", minutes=0.0, stream=terminal)
    callback.on_start(10, 1, [])
    for epoch, score in ((1, 0.5), (2, 0.7)):
        record = {"epoch": epoch, "loss": 1.0, "validation": {"scored": "hidden", "hidden": {"nll": score}}}
        callback.on_epoch(record, better=epoch == 1)
    assert "epoch 2/10  loss 1  best nll 0.5  left 0:00:00" in terminal.getvalue()
    callback.on_end()
    callback.on_end()  # ends once
    assert terminal.getvalue().count("\n") == 1


def test_tensorboard_gets_every_curve(tmp_path, monkeypatch):
    curves = []

    class Writer:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, *point):
            curves.append(point)

        def close(self):
            curves.append("closed")

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    run(tiny_settings(epochs=2), tmp_path / "r", splits=tiny_splits(), callback=TensorBoard(tmp_path))
    names = {point[0] for point in curves[:-1]}
    assert {"loss", "gradient", "learning_rate", "validation/all/mse", "validation/hidden/crps"} <= names
    assert curves[-1] == "closed" and {point[2] for point in curves[:-1]} == {1, 2}
