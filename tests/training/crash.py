"""Trains the tiny problem in a real process that is killed, again and again, at random moments.

Run as `python -m tests.training.crash FOLDER KILLS`: torch is loaded once, every attempt is a fork of this process.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from cru.reporting.ledger import append
from cru.training import run
from tests.training.tiny import tiny_settings, tiny_splits

SETTINGS = tiny_settings(epochs=40, schedule="cosine")
APART = 3  # epochs between two kills, so that the last one is far from the end


def attempt(folder: Path) -> int:
    """A process that trains, or goes on; its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            record = run(SETTINGS, folder, splits=tiny_splits(), resume=True)
            append(folder.parent / "ledger.jsonl", record)
            code = 0
        finally:
            os._exit(code)
    return child


def epochs(folder: Path) -> int:
    """How many have been written down."""
    log = folder / "log.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    moments = random.Random(0)
    done = 0
    while done < kills:
        child = attempt(folder)
        while epochs(folder) < APART * done:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.03))  # anywhere in an epoch
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"finished before kill {done + 1}: make it longer")
        done += 1
    _, status = os.waitpid(attempt(folder), 0)
    print(f"{done} kills, then exit code {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
