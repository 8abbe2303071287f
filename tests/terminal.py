"""Run a program on a terminal of its own, and read what it shows."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_on_terminal(
    words: list[str], folder: Path, react: Callable[[str, int], None] | None = None, *, timeout: float = 300
) -> tuple[int, str]:
    """Run ``python words`` on a terminal. ``react`` gets all text so far and the process id whenever text arrives."""
    outer, inner = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, *words], stdin=inner, stdout=inner, stderr=inner, cwd=folder, env=environment
    )
    os.close(inner)
    text, end = "", time.monotonic() + timeout
    while time.monotonic() < end:
        if select.select([outer], [], [], 0.2)[0]:
            try:
                part = os.read(outer, 65536)
            except OSError:  # the program has closed the terminal
                break
            text += part.decode(errors="replace")
            if react is not None:
                react(text, process.pid)
        elif process.poll() is not None:
            break
    os.close(outer)
    process.kill() if process.poll() is None else None
    return process.wait(), text


def last_line_drawn(text: str) -> str:
    """Return the last state of the line that was overwritten last."""
    return re.split(r"[\r\n]+", text.rstrip())[-1].strip()
