"""The console that all verbs write to."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console() -> "Console":
    """Plain text: units stand in brackets, and numbers need no colours."""
    from cru.console import PlainConsole

    console = PlainConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200  # a file or a pipe has no edge
    return console


@contextmanager
def noting(console: "Console") -> Iterator[None]:
    """What the library warns of, as notes on the console."""
    with warnings.catch_warnings(action="always", category=UserWarning):
        warnings.showwarning = lambda message, *_, **__: console.print(f"Note: {message}", soft_wrap=True)
        yield
