"""The console that all verbs write to."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console() -> "Console":
    """Plain text: units stand in brackets, and numbers need no colours."""
    from rich.console import Console

    return Console(highlight=False, markup=False)
