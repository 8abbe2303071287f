"""The console that everything is printed on."""

from typing import Any

from rich.console import Console
from rich.text import Text

from cru.errors import printable


class PlainConsole(Console):
    """A console for plain text, with or without tables: what stands in names and files cannot control the terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text that is printed, cells of tables too, comes through here."""
        return super().render_str(printable(text, keep="\n\t"), **options)
