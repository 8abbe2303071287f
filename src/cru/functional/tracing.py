"""Marks for `torch.compile`. The public ones of PyTorch import its compiler, which takes a second."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch import _compile

P = ParamSpec("P")
R = TypeVar("R")


def not_traced(function: Callable[P, R]) -> Callable[P, R]:
    """Keep the compiler out of a function, as `torch.compiler.disable` does. It is imported at the first call."""
    return _compile._disable_dynamo(function)


def constant_in_traces(function: Callable[P, R]) -> Callable[P, R]:
    """Let the compiler call a function once and keep its result, as `torch.compiler.assume_constant_result` does."""
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010 - no attribute of a callable
    return function
