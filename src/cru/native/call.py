"""Calling compiled code: pointers to tensors, and threads over the batch."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Ten = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Eleven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def beliefs_like(y: Tensor, mean: Tensor) -> list[Tensor]:
    """Room for a prior and a posterior over (batch, time): mean, upper, lower, side each."""
    means = (*y.shape[:2], mean.shape[-1])
    return [y.new_empty(means if i % 4 == 0 else y.shape) for i in range(8)]


def check_alike(
    like: Tensor, tensors: Mapping[str, tuple[Tensor, Sequence[int]]], dtype: torch.dtype | None = None
) -> None:
    """The last gate before raw memory: every tensor of its shape, in the place of ``like``, and of its type or
    ``dtype``."""
    dtype = like.dtype if dtype is None else dtype
    for name, (tensor, shape) in tensors.items():
        if tensor.dtype != dtype or tensor.device != like.device:
            raise ValueError(f"`{name}` must be {dtype} on {like.device}, got {tensor.dtype} on {tensor.device}.")
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"`{name}` must have the shape {tuple(shape)}, got {tuple(tensor.shape)}.")


def transformed() -> bool:
    """Whether `torch.func` or a forward-mode derivative is at work, which compiled code cannot follow."""
    functions = torch._C._are_functorch_transforms_active
    return not torch.compiler.is_compiling() and (functions() or torch.autograd.forward_ad._current_level >= 0)


def no_second_derivative(ctx: Any, *grads: Any) -> None:
    """For the operators that are gradients themselves."""
    raise RuntimeError("the compiled filter has a first derivative only: for a second one set CRU_NATIVE=0.")


def pointers(tensors: Sequence[Tensor | None]) -> "ctypes.Array[ctypes.c_void_p]":
    """The addresses of contiguous tensors, as a C array with null for None; the tensors must be kept alive."""
    return (ctypes.c_void_p * len(tensors))(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="cru")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork: a child makes its own
    os.register_at_fork(after_in_child=_pool.cache_clear)


def threaded(batch: int, work: Any) -> list[Any]:
    """Run ``work(first, last)`` on consecutive parts of the batch, one a thread (ctypes releases the GIL)."""
    threads = min(torch.get_num_threads(), batch)
    if threads <= 1:
        return [work(0, batch)]
    edges = [batch * i // threads for i in range(threads + 1)]
    return list(_pool(threads).map(lambda part: work(*part), pairwise(edges)))
