"""Locks between processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def only_process(lock: Path, refusal: ValueError) -> Iterator[None]:
    """Lock the file ``lock``. The operating system releases the lock when the process ends.

    Raises:
        ValueError: ``refusal``, if another process has the lock.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    file_lock = FileLock(lock)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        raise refusal from None
    try:
        yield
    finally:
        file_lock.release()
