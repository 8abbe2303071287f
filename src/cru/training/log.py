"""The log of a run: one JSON line an epoch."""

import json
from pathlib import Path
from typing import Any

from cru.files import write_atomically
from cru.training.listener import Listener


class Log(Listener):
    """Always written. When a run goes on, the file begins again with the epochs of its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, epochs: int, batches: int, history: list[dict[str, Any]]) -> None:
        """Write what is done already."""
        write_atomically(self.path, "".join(json.dumps(record) + "\n" for record in history).encode())

    def epoch(self, record: dict[str, Any], *, better: bool) -> None:
        """Add a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
