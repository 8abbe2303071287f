"""Ctrl-C during a training: the first one ends it with the best epoch so far, the second one stops everything."""

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from cru.training.callbacks import Callback, CallbackList


class StopOnInterrupt(CallbackList):
    """Let Ctrl-C end a training early, and keep its best epoch. Use it in a ``with`` statement around the training.

    Before the training and at the second Ctrl-C, KeyboardInterrupt is raised as usual. This class replaces Python's own
    handler of Ctrl-C only, and only in the main thread.

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
        """What Ctrl-C has changed, in a sentence. None if it has changed nothing."""
        if not self.cut or self.finished == self.epochs:
            return None
        return (
            f"Ctrl-C ended the training after {self.finished} of {self.epochs} epochs. The best epoch so far is kept."
        )

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
        what = "Calibration goes on" if self.ended else f"The training ends after {self.finished} complete epochs"
        sys.stderr.write(f"\n{what}. Press Ctrl-C again to stop without a result.\n")
