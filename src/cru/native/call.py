"""Calls of compiled code: checks of tensors, structures of their addresses, and threads for parts of the batch."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from cru.native.layout import Beliefs, FilterSaved

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Ten = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Eleven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

_Layout = TypeVar("_Layout", bound=ctypes.Structure)
_Result = TypeVar("_Result")


def switched_off() -> bool:
    """Return whether ``CRU_NATIVE=0`` disables compiled code."""
    return os.environ.get("CRU_NATIVE", "1") == "0"


def no_second_derivative(ctx: Any, *grads: Any) -> None:
    """Raise RuntimeError, as the backward function of operators that are gradients themselves.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("the compiled filter has a first derivative only: for a second one set CRU_NATIVE=0.")


def check_tensors(
    like: Tensor, tensors: Mapping[str, tuple[Tensor, Sequence[int]]], dtype: torch.dtype | None = None
) -> None:
    """Check shape, dtype and device before addresses go to compiled code.

    Args:
        like: a tensor with the device of all tensors, and with their dtype unless ``dtype`` is given.
        tensors: the tensor and its expected shape for each name of an argument.
        dtype: the dtype of all tensors.

    Raises:
        ValueError: if a tensor differs.
    """
    dtype = like.dtype if dtype is None else dtype
    for name, (tensor, shape) in tensors.items():
        if tensor.dtype != dtype or tensor.device != like.device:
            raise ValueError(f"`{name}` must be {dtype} on {like.device}, got {tensor.dtype} on {tensor.device}.")
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"`{name}` must have the shape {tuple(shape)}, got {tuple(tensor.shape)}.")


def empty_beliefs(y: Tensor, mean: Tensor) -> list[Tensor]:
    """Allocate a prior and a posterior over (batch, time): mean, upper, lower and side of each."""
    means = (*y.shape[:2], mean.shape[-1])
    return [y.new_empty(means if i % 4 == 0 else y.shape) for i in range(8)]


def pointers(layout: type[_Layout], **tensors: Tensor | Sequence[Tensor] | None) -> _Layout:
    """Fill a structure with the addresses of contiguous tensors. The caller must keep the tensors alive.

    Args:
        layout: a structure of pointers and of `Beliefs`.
        tensors: one tensor for each pointer, or None for a null pointer, and four tensors for each `Beliefs`.

    Returns:
        The structure.

    Raises:
        TypeError: if the names are not those of the fields.
    """
    if tensors.keys() != _names(layout):
        raise TypeError(f"{layout.__name__} has other fields than {sorted(tensors)}.")
    return layout(**{name: _address(tensor) for name, tensor in tensors.items()})


@cache
def _names(layout: type[ctypes.Structure]) -> frozenset[str]:
    return frozenset(field[0] for field in layout._fields_)


def _address(tensors: Tensor | Sequence[Tensor] | None) -> int | Beliefs | None:
    if isinstance(tensors, Tensor):
        return tensors.data_ptr()
    if tensors is None:
        return None
    mean, upper, lower, side = tensors
    return Beliefs(mean.data_ptr(), upper.data_ptr(), lower.data_ptr(), side.data_ptr())


def saved_pointers(saved: list[Tensor]) -> FilterSaved:
    """Fill the structure of a filter's backward pass from prior, posterior and the gradients by both."""
    return pointers(
        FilterSaved, prior=saved[:4], posterior=saved[4:8], grad_prior=saved[8:12], grad_posterior=saved[12:]
    )


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="cru")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork, so a child process starts its own
    os.register_at_fork(after_in_child=_pool.cache_clear)


def threaded(batch: int, work: Callable[[int, int], _Result]) -> list[_Result]:
    """Run ``work(first, last)`` on consecutive parts of the batch, one part per thread. ctypes releases the GIL.

    Returns:
        The results, in the order of the parts.
    """
    threads = min(torch.get_num_threads(), batch)
    if threads <= 1:
        return [work(0, batch)]
    edges = [batch * i // threads for i in range(threads + 1)]
    return list(_pool(threads).map(lambda part: work(*part), pairwise(edges)))
