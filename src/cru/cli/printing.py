"""The console of all commands."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console() -> "Console":
    """Make a console for plain text, without markup and colours: text has units in brackets."""
    from cru.console import PlainConsole

    console = PlainConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200  # a file or a pipe has no width
    return console


@contextmanager
def print_warnings(console: "Console") -> Iterator[None]:
    """Print warnings of the library as notes on the console."""
    with warnings.catch_warnings(action="always", category=UserWarning):
        warnings.showwarning = lambda message, *_, **__: console.print(f"Note: {message}", soft_wrap=True)
        yield
