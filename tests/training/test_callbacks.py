import io
import sys
import types

from rich.console import Console

from cru.training import run
from cru.training.callbacks import BarProgress, LineProgress, TensorBoard, make_progress_callback
from tests.training.tiny import tiny_settings, tiny_splits


def test_a_pipe_gets_one_line_an_epoch(tmp_path):
    text = io.StringIO()
    console = Console(file=text, width=200)
    assert isinstance(make_progress_callback(console, "x"), LineProgress)
    run(tiny_settings(epochs=3), tmp_path / "r", splits=tiny_splits(), callback=make_progress_callback(console, "x"))
    lines = text.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all("loss" in line and "validation mse" in line and "left 0:00:0" in line for line in lines)


def test_a_terminal_gets_a_bar_that_fits(tmp_path):
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True)
    callback = make_progress_callback(console, "f-cru")
    assert isinstance(callback, BarProgress)
    run(tiny_settings(epochs=2), tmp_path / "r", splits=tiny_splits(), callback=callback)
    assert "epoch 2/2" in text.getvalue() and "validation mse" in text.getvalue()


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
