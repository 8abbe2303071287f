"""Threads: how many a computation gets, and what a forked process can do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cru.errors import RunError

ONE_THREAD_LIMIT = 1_000_000
"""Batch x time x state below which one thread is used: `benchmarks/threads.py` shows what more threads cost."""

_ASKED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_pools_started = False  # in this process, those of polars
_pools_lost = False  # the process is a fork of one that had started them


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """Compute in one thread if ``work``, batch x time x state, is small, unless the user chose a number of threads.

    On a busy machine, several threads that share a small computation mostly wait for each other. The number is restored
    at the end.

    >>> with threads_for(16 * 50 * 8):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    if work >= ONE_THREAD_LIMIT or _user_chose(before):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _user_chose(threads: int) -> bool:
    """Whether the number is set in the environment, or is none that PyTorch chooses by itself."""
    if any(os.environ.get(name) for name in _ASKED):
        return True
    cores = os.cpu_count() or 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return threads not in (cores, cores // 2, available, available // 2)  # one or two threads run on a core


def check_fork() -> None:
    """Raise an error where polars would wait forever: in a fork of a process that had used it.

    Call it before polars computes anything.
    """
    global _pools_started
    if _pools_lost:
        raise RunError(
            "a forked process cannot use tables after its parent did, because threads do not survive a fork. "
            "Start processes with multiprocessing's `spawn` method."
        )
    _pools_started = True


def _after_fork() -> None:
    global _pools_lost
    _pools_lost = _pools_lost or _pools_started
    torch.set_num_threads(1)  # the threads of PyTorch are lost, too, and it would wait for them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
