"""How a computation runs: its number of threads, evaluation mode, and the check of forked processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from cru.errors import RunError

ONE_THREAD_LIMIT = 1_000_000
"""Work (batch × time × state) below which one thread is faster. `benchmarks/threads.py` measures it."""

_ENVIRONMENT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_pools_started = False  # whether this process has started the thread pools of polars
_pools_lost = False  # whether this process is a fork of one that had started them


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """Use one thread if ``work`` = batch × time × state is small, unless the user chose the number of threads.

    On a busy machine, the threads of a small computation mostly wait for each other. The number of threads is restored
    at the end.

    >>> from cru.compute import threads_for
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
    """Return whether the number is set in the environment, or differs from the default of PyTorch."""
    if any(os.environ.get(name) for name in _ENVIRONMENT):
        return True
    cores = os.cpu_count() or 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return threads not in (cores, cores // 2, available, available // 2)  # a core has one or two threads


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set ``module`` to evaluation mode, and restore the mode of each of its submodules afterwards.

    >>> from torch import nn
    >>> from cru.compute import evaluating
    >>> frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    >>> with evaluating(frozen):
    ...     frozen.training
    False
    >>> frozen.training, frozen[1].training
    (True, False)
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def check_fork() -> None:
    """Raise RunError in a fork of a process that has used polars, because polars would wait forever.

    Call this function before any computation of polars.
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
    torch.set_num_threads(1)  # the threads of PyTorch are also lost, and PyTorch would wait for them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
