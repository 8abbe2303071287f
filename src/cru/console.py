"""A console that prints only printable text."""

from typing import Any

from rich.console import Console
from rich.text import Text

from cru.errors import printable


class PlainConsole(Console):
    """A console for plain text and tables. Text from names and files cannot control the terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape control characters. Every printed text passes through this method, also in tables."""
        return super().render_str(printable(text, keep="\n\t"), **options)
