"""How long work takes: CPU time, best of several, so that other processes disturb it least."""

import time
from collections.abc import Callable
from typing import Any


def best(work: Callable[[], Any], repeats: int = 7, enough: float = 20.0) -> float:
    """CPU seconds of the fastest of ``repeats`` calls; stops early, after two, once ``enough`` seconds are spent."""
    times: list[float] = []
    while len(times) < min(repeats, 2) or (len(times) < repeats and sum(times) < enough):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
