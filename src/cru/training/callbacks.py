"""Callbacks at the start of a training, after each step, after each epoch, at the end, and at Ctrl-C."""

import json
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from cru.errors import printable
from cru.files import write_atomically
from cru.progress import Output, ProgressBar, default_stream, format_duration, is_live


class Callback:
    """The base class of callbacks, whose methods do nothing."""

    def on_stage(self, name: str) -> None:
        """Handle the start of a stage before or after the training, such as "calibration"."""

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Handle the start of the training, or its continuation.

        Args:
            epochs: the number of epochs.
            batches: the number of batches of an epoch.
            history: the records of the epochs that are done.
        """

    def on_step(self, number: int, loss: float) -> None:
        """Handle the end of a batch. ``loss`` is the mean of the epoch so far."""

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Handle the end of an epoch, after its checkpoint. ``better`` means that its score is the best so far."""

    def on_end(self) -> None:
        """Handle the end of the training, with or without an error."""

    def should_stop(self) -> bool:
        """Return whether training ends now, with its best epoch so far."""
        return False


class CallbackList(Callback):
    """A callback that calls several callbacks in order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def on_stage(self, name: str) -> None:
        """Call `on_stage` of each callback."""
        for callback in self.callbacks:
            callback.on_stage(name)

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

    def should_stop(self) -> bool:
        """Return whether any callback ends the training."""
        return any(callback.should_stop() for callback in self.callbacks)


class JsonLog(Callback):
    """A callback that writes one JSON line per epoch. A continued run first rewrites the lines of its checkpoint."""

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
    """A callback that prints one plain line per epoch, for pipes and log files."""

    def __init__(self, stream: Output, minutes: float | None = None) -> None:
        self.stream, self.minutes = stream, minutes

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Store the number of epochs and the start time."""
        self.epochs, self.started, self.before = epochs, time.monotonic(), len(history)

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Print loss, validation score, time taken and time left."""
        done = record["epoch"]
        left = time_left(time.monotonic() - self.started, done - self.before, self.epochs - done, self.minutes)
        mark = "  best" if better else ""
        line = (
            f"epoch {done}/{self.epochs}  loss {record['loss']:.4g}  {format_validation(record)}  "
            f"{record['seconds']:.1f} s  left {format_duration(left)}{mark}"
        )
        self.stream.write(printable(line) + "\n")
        self.stream.flush()


class BarProgress(Callback):
    """A live bar on a terminal or in a notebook: epoch, loss, best validation score so far, time left."""

    def __init__(self, title: str, minutes: float | None = None, stream: Output | None = None) -> None:
        self.title, self.minutes, self.stream = title, minutes, stream
        self.bar: ProgressBar | None = None

    def on_stage(self, name: str) -> None:
        """Show the name of the stage."""
        self._open(None, keep=False)
        self._show(0, name)

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Show the bar, with the epochs that are done."""
        self.epochs, self.batches, self.before = epochs, batches, len(history)
        self.finished, self.best = len(history), ""
        self._open(epochs * batches, done=self.finished * batches, keep=True)
        self._show(self.finished * batches, f"epoch {min(self.finished + 1, epochs)}/{epochs}")

    def on_step(self, number: int, loss: float) -> None:
        """Move the bar by one batch."""
        self._show(self.finished * self.batches + number, self._note(self.finished + 1, loss))

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Move the bar to the end of the epoch."""
        self.finished = record["epoch"]
        if better:
            self.best = "  " + format_validation(record, first=True).replace("validation", "best")
        self._show(self.finished * self.batches, self._note(self.finished, record["loss"]))

    def on_end(self) -> None:
        """Leave the bar of a training on the screen, and erase that of another stage."""
        if self.bar is not None:
            self.bar.close()
        self.bar = None

    def _note(self, epoch: int, loss: float) -> str:
        return f"epoch {epoch}/{self.epochs}  loss {loss:.3g}{self.best}"

    def _open(self, total: int | None, *, keep: bool, done: int = 0) -> None:
        self.on_end()
        self.bar = ProgressBar(self.title, total, done=done, keep=keep, wait=0.0, stream=self.stream)

    def _show(self, done: int, note: str) -> None:
        if self.bar is not None:
            spent, steps = time.monotonic() - self.bar.started, done - self.bar.start
            rest = (self.bar.total or 0) - done
            self.bar.update(done, note, left=time_left(spent, steps, rest, self.minutes) if steps else None)


class TensorBoard(Callback):
    """A callback that writes curves for TensorBoard, an optional dependency."""

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


def make_progress_callback(
    title: str, minutes: float | None = None, *, stream: Output | None = None, lines: bool = False
) -> Callback:
    """Make a callback that shows the progress of a training.

    Args:
        title: the name of the training.
        minutes: the time limit of the training.
        stream: the output. Default: standard error, or standard output in a notebook.
        lines: whether to print a line per epoch if the output is neither a terminal nor a notebook. False: print
            nothing there.
    """
    stream = stream or default_stream()
    if is_live(stream):
        return BarProgress(title, minutes, stream)
    return LineProgress(stream, minutes) if lines else Callback()


def time_left(spent: float, done: int, rest: int, minutes: float | None) -> float:
    """Estimate the seconds that are left.

    Args:
        spent: the seconds so far.
        done: the number of finished steps.
        rest: the number of steps that are left.
        minutes: the time limit of the training. None: no limit.
    """
    left = spent / done * rest
    return left if minutes is None else min(left, max(60 * minutes - spent, 0.0))


def format_validation(record: dict[str, Any], *, first: bool = False) -> str:
    """Format the validation scores of an epoch, or only the ``first`` of them."""
    scores = record["validation"]
    scores = scores[scores["scored"]]
    shown = [f"{name} {scores[name]:.4g}" for name in ("mse", "nll") if name in scores]
    return "validation " + " ".join(shown[:1] if first else shown)


class StopOnInterrupt(CallbackList):
    """A callback that lets Ctrl-C end a training early, with the weights of its best epoch.

    Use it in a ``with`` statement around the training. Before the training and at the second Ctrl-C, KeyboardInterrupt
    is raised as usual. The class replaces only Python's own handler of Ctrl-C, and only in the main thread.

    Args:
        callbacks: other callbacks, such as a progress bar. Leaving the ``with`` statement ends them.
    """

    def __init__(self, *callbacks: Callback) -> None:
        super().__init__(*callbacks)
        self.requested = False  # whether Ctrl-C was pressed during or after the training
        self.started = self.ended = self.cut = False  # cut: the training ended because of Ctrl-C
        self.epochs = self.finished = 0

    def on_start(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Let Ctrl-C end the training from now on."""
        self.started, self.epochs, self.finished = True, epochs, len(history)
        super().on_start(epochs, batches, history)

    def on_epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Count the epoch."""
        self.finished = record["epoch"]
        super().on_epoch(record, better=better)

    def on_end(self) -> None:
        """Ignore the first Ctrl-C from now on, because the rest is short."""
        self.ended = True
        super().on_end()

    def should_stop(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        self.cut = self.requested
        return self.requested or super().should_stop()

    @property
    def warning(self) -> str | None:
        """A sentence about the effect of Ctrl-C. None if it has no effect."""
        if not self.cut or self.finished == self.epochs:
            return None
        done = f"{self.finished} of {self.epochs} epochs"
        return f"Ctrl-C ended the training after {done}. The model has the best weights so far."

    def __enter__(self) -> "StopOnInterrupt":
        main = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT) if main else None
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        super().on_end()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.started or self.requested:
            raise KeyboardInterrupt
        self.requested = True
        what = "The calibration continues" if self.ended else f"The training ends after {self.finished} complete epochs"
        sys.stderr.write(f"\n{what}. Press Ctrl-C again to stop without a result.\n")
