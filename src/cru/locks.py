"""Locks between processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def only_process(lock: Path, refusal: ValueError) -> Iterator[None]:
    """Hold the file ``lock``. The operating system releases it when the process ends.

    Raises:
        ValueError: another process holds the lock; ``refusal`` is the error.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        raise refusal from None
    try:
        yield
    finally:
        held.release()
