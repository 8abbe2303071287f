"""Who is told what happens in a run: nobody, a terminal, a pipe, TensorBoard."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cru.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Listener:
    """Hears everything and does nothing; the others are made of it."""

    def begin(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Training starts, or goes on after the epochs in ``history``."""

    def step(self, number: int, loss: float) -> None:
        """A batch is done; ``loss`` is the mean of the epoch so far."""

    def epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """An epoch is done and its checkpoint written; ``better`` than all before it."""

    def end(self) -> None:
        """Training is over, well or not."""


class Several(Listener):
    """All of the given ones."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    def begin(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.begin(epochs, batches, history)

    def step(self, number: int, loss: float) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.step(number, loss)

    def epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.epoch(record, better=better)

    def end(self) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.end()


class Lines(Listener):
    """One plain line an epoch, for pipes and log files."""

    def __init__(self, console: "Console", minutes: float | None = None) -> None:
        self.console, self.minutes = console, minutes

    def begin(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Remember how much there is to do."""
        self.epochs, self.started, self.before = epochs, time.monotonic(), len(history)

    def epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Loss, validation score, time taken and time left."""
        done = record["epoch"]
        spent = time.monotonic() - self.started
        left = spent / (done - self.before) * (self.epochs - done)
        left = clock(left if self.minutes is None else min(left, max(60 * self.minutes - spent, 0)))
        mark = "  best" if better else ""
        self.console.print(
            f"epoch {done}/{self.epochs}  loss {record['loss']:.4g}  {validation(record)}  {record['seconds']:.1f} s  "
            f"left {left}{mark}",
            soft_wrap=True,
        )


class Bar(Listener):
    """A live bar on a terminal: epoch and batch, loss, validation score, time left."""

    def __init__(self, console: "Console", title: str, minutes: float | None = None) -> None:
        self.console, self.title, self.minutes = console, printable(title), minutes
        self.bar: Progress | None = None
        self.task: TaskID

    def begin(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Show the bar, with what is done already."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.epochs, self.batches, self.done = epochs, batches, len(history)
        self.score = validation(history[-1], ("mse",)) if history else ""
        title = TextColumn("{task.description}", markup=False)
        columns = (title, BarColumn(bar_width=14), TextColumn("{task.fields[state]}"))
        left = [TextColumn("left"), TimeRemainingColumn()]
        if self.minutes is not None:
            left.append(TextColumn(f"at most {clock(60 * self.minutes)} in all"))
        self.bar = Progress(*columns, *left, console=self.console, speed_estimate_period=600)
        total, done = epochs * batches, self.done * batches
        self.task = self.bar.add_task(self.title, total=total, completed=done, state="starting")
        self.bar.start()

    def step(self, number: int, loss: float) -> None:
        """One batch further."""
        self._show(self.done * self.batches + number, f"loss {loss:.3g}")

    def epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """One epoch further."""
        self.done, self.score = record["epoch"], validation(record, ("mse",))
        self._show(self.done * self.batches, f"loss {record['loss']:.3g}")

    def end(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.stop()

    def _show(self, completed: int, loss: str) -> None:
        if self.bar is not None:
            epoch = min(self.done + 1, self.epochs)
            state = f"epoch {epoch}/{self.epochs}  {loss}  {self.score}".rstrip()
            self.bar.update(self.task, completed=completed, state=state)


class TensorBoard(Listener):
    """Curves for TensorBoard, which is not among the dependencies."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("TensorBoard is not installed: pip install tensorboard.") from None
        self.writer = SummaryWriter(str(folder))

    def epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Loss, rate and every validation score."""
        curves = {name: record[name] for name in ("loss", "gradient", "learning_rate")}
        for region, scores in record["validation"].items():
            if isinstance(scores, dict):
                curves |= {f"validation/{region}/{name}": value for name, value in scores.items()}
        for name, value in curves.items():
            self.writer.add_scalar(name, value, record["epoch"])

    def end(self) -> None:
        """Flush."""
        self.writer.close()


def listener_for(console: "Console", title: str, minutes: float | None = None) -> Listener:
    """A live bar on a terminal, else plain lines; ``minutes`` is the limit of the training."""
    return Bar(console, title, minutes) if console.is_terminal else Lines(console, minutes)


def validation(record: dict[str, Any], metrics: tuple[str, ...] = ("mse", "nll")) -> str:
    """The validation scores of an epoch in a few words."""
    scores = record["validation"]
    scores = scores[scores["scored"]]
    return "validation " + " ".join(f"{name} {scores[name]:.4g}" for name in metrics if name in scores)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725.0)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
