"""Kernel launches of the filters in PyTorch, for each time step: they decide the speed on a GPU.

An operation of PyTorch that computes counts as one launch. One that only makes a view does not. The count is that of
forward + backward, as the difference between two lengths. *Step by step* leaves the derivative to autograd.

`python benchmarks/launches.py`
"""

from typing import Any

import torch
from common import report
from layers import SHAPES, latent, layer
from torch.utils._python_dispatch import TorchDispatchMode

from cru.functional import gaps
from cru.functional.sequence import filter_sequence, filter_sequence_reference
from cru.functional.stepwise import filter_stepwise

LENGTHS = (20, 40)
EMPTY = ("empty", "detach", "alias", "lift", "local_scalar_dense", "_unsafe_view", "unbind", "split")


class CountLaunches(TorchDispatchMode):
    """Count the operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it unless its result shares the memory of an argument that it does not change."""
        schema = func._schema
        view = any(each.alias_info and not each.alias_info.is_write for each in schema.returns)
        self.count += not view and not any(word in schema.name for word in EMPTY)
        return func(*args, **(kwargs or {}))


def launches(kind: str, time: int, batch: int, sizes: tuple[int, int, int], run: Any) -> int:
    """Count the launches of one forward and backward pass over ``time`` steps."""
    dtype = torch.float64 if run is filter_sequence_reference else torch.float32
    made, (y, y_var, times) = layer(kind, *sizes, dtype), latent(batch, time, sizes[0] // 2, dtype)
    delta, mask = gaps(times, None, 1.0, dtype), torch.ones_like(y, dtype=torch.bool)
    stepped = delta != 0
    stepped[:, 0] = False
    more = () if run is filter_sequence_reference else (stepped,)
    with CountLaunches() as counted:
        _, posterior = run(made.transition(), made.initial(len(y)), y, y_var, mask, delta, *more)
        posterior.mean.square().mean().backward()
    return counted.count


def main() -> None:
    """Print the table."""
    rows: list[list[Any]] = []
    for shape, (batch, _, *sizes) in SHAPES.items():
        for kind in ("CRU", "f-CRU", "RKN"):
            counts = []
            for run in (filter_sequence_reference, filter_stepwise, filter_sequence):
                short, long = (launches(kind, time, batch, tuple(sizes), run) for time in LENGTHS)
                counts.append(round((long - short) / (LENGTHS[1] - LENGTHS[0])))
            rows.append([shape, kind, *counts])
    columns = ["shape", "layer", "reference", "step by step, gradient by autograd", "custom gradient"]
    report("launches", "Kernel launches for each time step, forward + backward", columns, rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
