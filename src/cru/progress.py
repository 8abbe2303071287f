"""A progress bar for everything that takes time: one live line on a terminal or in a notebook, nothing elsewhere."""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import Protocol, TypeVar, runtime_checkable

from cru.errors import printable

Item = TypeVar("Item")

WAIT = 1.0  # seconds before a bar appears: short work shows none
REFRESH = 0.1  # seconds between two drawings
CELLS = 14  # width of a bar
NOTEBOOK_WIDTH = 100  # characters, because the width of a notebook is unknown


@runtime_checkable
class Output(Protocol):
    """The methods of a stream that a bar needs. The streams of notebooks have few others."""

    def write(self, text: str, /) -> object:
        """Write text."""

    def flush(self) -> object:
        """Show what is written."""

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        ...


class ProgressBar:
    """A bar of the finished share of some work, with an estimate of the time left. Use it in a ``with`` statement.

    The bar appears after a second of work. Nothing is shown if the output is neither a terminal nor a notebook.

    Args:
        title: the name of the work, such as "impute".
        total: the number of steps. None: unknown.
        done: the number of steps that are done at the start.
        show: whether to show the bar at all.
        keep: whether to leave the bar on the screen at the end. Otherwise it is erased.
        wait: seconds of work before the bar appears.
        stream: the output. Default: standard error, or standard output in a notebook.

    >>> from cru.progress import ProgressBar
    >>> with ProgressBar("count", 3) as bar:
    ...     for number in range(3):
    ...         bar.update(number + 1)
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        done: int = 0,
        show: bool = True,
        keep: bool = False,
        wait: float = WAIT,
        stream: Output | None = None,
    ) -> None:
        self.title, self.total, self.keep, self.wait = printable(title), total, keep, wait
        self.start = self.done = done
        self.note = ""
        self.stream = stream or default_stream()
        self.live = show and is_live(self.stream)
        self.started = time.monotonic()
        self._drawn, self._width = 0.0, 0  # time of the last drawing, and its number of characters

    def update(self, done: int, note: str | None = None, *, left: float | None = None) -> None:
        """Set the number of finished steps.

        Args:
            done: the number of finished steps.
            note: text next to the bar, such as the loss. None keeps the last one.
            left: seconds that are left. None: estimated from the steps so far.
        """
        self.done = done
        self.note = self.note if note is None else printable(note)
        now = time.monotonic()
        if self.live and now - self.started >= self.wait and now - self._drawn >= REFRESH:
            self._draw(now, left)

    def close(self) -> None:
        """End the bar: leave it on the screen, or erase it."""
        if self._drawn and self.keep:
            self._draw(time.monotonic(), 0.0 if self.done == self.total else None)
            self.stream.write("\n")
        elif self._drawn:
            self.stream.write("\r" + " " * self._width + "\r")
        if self._drawn:
            self.stream.flush()
        self.live, self._drawn = False, 0.0

    def _draw(self, now: float, left: float | None) -> None:
        if left is None and self.total and self.done > self.start:
            left = (now - self.started) / (self.done - self.start) * (self.total - self.done)
        bar = f"{self._cells(self.done / self.total)}  " if self.total else ""
        rest = f"  left {format_duration(left)}" if left is not None else ""
        width = NOTEBOOK_WIDTH if in_notebook() else shutil.get_terminal_size().columns - 1
        text = f"{self.title}  {bar}{self.note}{rest}"[:width]
        self.stream.write("\r" + text.ljust(self._width))  # spaces cover a longer text from before
        self.stream.flush()
        self._drawn, self._width = now, len(text)

    def _cells(self, share: float) -> str:
        filled = round(CELLS * min(max(share, 0.0), 1.0))
        full, empty = "━─" if "utf" in (getattr(self.stream, "encoding", None) or "").lower() else "#."
        return full * filled + empty * (CELLS - filled)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def track(items: Iterable[Item], title: str, total: int | None = None, *, show: bool = True) -> Iterator[Item]:
    """Iterate over ``items`` with a `ProgressBar`.

    Args:
        items: a list, or an iterator that does the work.
        title: the name of the work.
        total: the number of items. None: the length of ``items``.
        show: whether to show the bar at all.

    >>> from cru.progress import track
    >>> [number**2 for number in track([1, 2, 3], "squares")]
    [1, 4, 9]
    """
    count = len(items) if total is None and isinstance(items, Sized) else total
    of = "" if count is None else f"/{count}"
    with ProgressBar(title, count, show=show) as bar:
        for number, item in enumerate(items):
            yield item
            bar.update(number + 1, f"{number + 1}{of}")


def default_stream() -> Output:
    """Return the stream of progress bars: standard error, or standard output in a notebook, which has no colour."""
    return sys.stdout if in_notebook() else sys.stderr


def is_live(stream: Output) -> bool:
    """Return whether a line of ``stream`` can be overwritten: it is a terminal, or the output of a notebook."""
    return stream.isatty() or (in_notebook() and stream in (sys.stdout, sys.stderr))


def in_notebook() -> bool:
    """Return whether the code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def format_duration(seconds: float) -> str:
    """Format hours, minutes and seconds.

    >>> from cru.progress import format_duration
    >>> format_duration(3725.0)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_bytes(count: int) -> str:
    """Format a number of bytes in megabytes.

    >>> from cru.progress import format_bytes
    >>> format_bytes(12_300_000)
    '12.3 MB'
    """
    return f"{count / 1e6:.1f} MB"
