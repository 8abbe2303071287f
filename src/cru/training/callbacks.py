"""Callbacks at the start of a training, after each step, after each epoch and at the end."""

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cru.errors import printable
from cru.files import write_atomically

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Callback:
    """Base callback; all hooks are no-ops."""

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Training starts, or continues after the epochs in ``history``."""

    def on_step(self, number: int, loss: float) -> None:
        """A batch is done. ``loss`` is the mean of the epoch so far."""

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """An epoch is done and its checkpoint is written. ``better`` means that its score is the best so far."""

    def on_end(self) -> None:
        """Training has ended, with or without an error."""


class CallbackList(Callback):
    """Call several callbacks in order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Call `on_start` of each callback."""
        for callback in self.callbacks:
            callback.on_start(epochs, batches, history)

    def on_step(self, number: int, loss: float) -> None:
        """Call `on_step` of each callback."""
        for callback in self.callbacks:
            callback.on_step(number, loss)

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Call `on_epoch` of each callback."""
        for callback in self.callbacks:
            callback.on_epoch(record, better=better)

    def on_end(self) -> None:
        """Call `on_end` of each callback."""
        for callback in self.callbacks:
            callback.on_end()


class JsonLog(Callback):
    """Write one JSON line per epoch. A run that continues rewrites the lines of its checkpoint first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Write the epochs that are done."""
        write_atomically(self.path, "".join(json.dumps(record) + "\n" for record in history).encode())

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


class LineProgress(Callback):
    """Print one plain line per epoch, for pipes and log files."""

    def __init__(self, console: "Console | _StandardError", minutes: float | None = None) -> None:
        self.console, self.minutes = console, minutes

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Store the number of epochs and the start time."""
        self.epochs, self.started, self.before = epochs, time.monotonic(), len(history)

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Print loss, validation score, time taken and time left."""
        done = record["epoch"]
        spent = time.monotonic() - self.started
        left = spent / (done - self.before) * (self.epochs - done)
        left = format_duration(left if self.minutes is None else min(left, max(60 * self.minutes - spent, 0)))
        mark = "  best" if better else ""
        self.console.print(
            f"epoch {done}/{self.epochs}  loss {record['loss']:.4g}  {format_validation(record)}  "
            f"{record['seconds']:.1f} s  left {left}{mark}",
            soft_wrap=True,
        )


class BarProgress(Callback):
    """Show a live bar on a terminal: epoch and batch, loss, validation score, time left."""

    def __init__(self, console: "Console", title: str, minutes: float | None = None) -> None:
        self.console, self.title, self.minutes = console, printable(title), minutes
        self.bar: Progress | None = None
        self.task: TaskID

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Show the bar, with the epochs that are done."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.epochs, self.batches, self.done = epochs, batches, len(history)
        self.score = format_validation(history[-1], ("mse",)) if history else ""
        title = TextColumn("{task.description}", markup=False)
        columns = (title, BarColumn(bar_width=14), TextColumn("{task.fields[state]}"))
        left = [TextColumn("left"), TimeRemainingColumn()]
        if self.minutes is not None:
            left.append(TextColumn(f"at most {format_duration(60 * self.minutes)} in all"))
        self.bar = Progress(*columns, *left, console=self.console, speed_estimate_period=600)
        total, done = epochs * batches, self.done * batches
        self.task = self.bar.add_task(self.title, total=total, completed=done, state="starting")
        self.bar.start()

    def on_step(self, number: int, loss: float) -> None:
        """Move the bar by one batch."""
        self._show(self.done * self.batches + number, f"loss {loss:.3g}")

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Move the bar to the end of the epoch."""
        self.done, self.score = record["epoch"], format_validation(record, ("mse",))
        self._show(self.done * self.batches, f"loss {record['loss']:.3g}")

    def on_end(self) -> None:
        """Stop updating the bar."""
        if self.bar is not None:
            self.bar.stop()

    def _show(self, completed: int, loss: str) -> None:
        if self.bar is not None:
            epoch = min(self.done + 1, self.epochs)
            state = f"epoch {epoch}/{self.epochs}  {loss}  {self.score}".rstrip()
            self.bar.update(self.task, completed=completed, state=state)


class TensorBoard(Callback):
    """Write curves for TensorBoard, an optional dependency."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("TensorBoard is not installed: pip install tensorboard.") from None
        self.writer = SummaryWriter(str(folder))

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Write loss, learning rate and every validation score."""
        curves = {name: record[name] for name in ("loss", "gradient", "learning_rate")}
        for region, scores in record["validation"].items():
            if isinstance(scores, dict):
                curves |= {f"validation/{region}/{name}": value for name, value in scores.items()}
        for name, value in curves.items():
            self.writer.add_scalar(name, value, record["epoch"])

    def on_end(self) -> None:
        """Flush and close the file."""
        self.writer.close()


def make_progress_callback(console: "Console", title: str, minutes: float | None = None) -> Callback:
    """Make a live bar on a terminal, otherwise plain lines. ``minutes`` is the time limit of the training."""
    return BarProgress(console, title, minutes) if console.is_terminal else LineProgress(console, minutes)


def make_stderr_progress_callback(title: str, minutes: float | None = None) -> Callback:
    """Make a progress callback that prints to standard error: plain lines if rich is not installed."""
    if find_spec("rich") is None:
        return LineProgress(_StandardError(), minutes)
    from cru.console import PlainConsole

    return make_progress_callback(PlainConsole(stderr=True), title, minutes)


class _StandardError:
    """The console of `LineProgress` without rich."""

    def print(self, text: str, *, soft_wrap: bool) -> None:
        """Print a line."""
        sys.stderr.write(printable(text) + "\n")


def format_validation(record: dict[str, Any], metrics: tuple[str, ...] = ("mse", "nll")) -> str:
    """Format the validation scores of an epoch."""
    scores = record["validation"]
    scores = scores[scores["scored"]]
    return "validation " + " ".join(f"{name} {scores[name]:.4g}" for name in metrics if name in scores)


def format_duration(seconds: float) -> str:
    """Format hours, minutes and seconds.

    >>> format_duration(3725.0)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
