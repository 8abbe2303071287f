"""Models outside this library: where they are found, and the option that allows a file to name one."""

import sys
from pathlib import Path
from typing import Annotated

import typer

AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import the module:Class that the folder names, which runs its code.")
]


def find_own_code(model: str = "", *, allow_code: bool = False) -> None:
    """Put the current folder on the path, for a model that the user typed or for code that the user allows."""
    if allow_code or ":" in model:
        sys.path.append(str(Path.cwd()))
