"""Where a second thread of PyTorch begins to help: a training step of a model, by batch x time x state.

    python benchmarks/threads.py

One run on two cores beside other processes (18 November 2026), medians of five steps. Below a product of 500,000, two
threads took 1.8 to 58 times as long in eight of ten cases, and 0.7 to 0.8 times as long in two. Above 800,000, they
took 1.02 to 1.15 times as long in five of six cases, and twice as long in one. No size showed a reliable gain.
`cru.compute.ONE_THREAD_LIMIT` lies where most of the loss ends. An idle machine may have a lower limit.
"""

import os
import statistics
import time

import torch

from cru.data.batch import Batch
from cru.models import Spec, create

SIZES = [
    (16, 50, 8),
    (16, 50, 32),
    (16, 200, 32),
    (64, 50, 32),
    (64, 200, 32),
    (64, 200, 64),
    (256, 100, 64),
    (256, 400, 64),
]
MODELS = ("cru", "gru-dt")


def batch_of(series: int, length: int, features: int = 4) -> Batch:
    """Random observations at random times."""
    values = torch.randn(series, length, features)
    return Batch(
        times=torch.rand(series, length, dtype=torch.float64).cumsum(1),
        values=values,
        mask=torch.rand(series, length, features) > 0.3,
        targets=values,
        target_mask=torch.ones(series, length, features, dtype=torch.bool),
        hidden=torch.zeros(series, length, features, dtype=torch.bool),
        lengths=torch.full((series,), length),
        ids=("",) * series,
    )


def seconds(name: str, size: tuple[int, int, int], threads: int) -> float:
    """The median of some training steps."""
    series, length, state = size
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    batch = batch_of(series, length)
    model = create(name, Spec(input_shape=(4,), target_shape=(4,)), hidden_size=state)
    took = []
    for _ in range(6):
        start = time.perf_counter()
        model.loss(batch).backward()
        took.append(time.perf_counter() - start)
    return statistics.median(took[1:])


def main() -> None:
    """Print the table."""
    many = torch.get_num_threads()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; milliseconds of a step")
    print(f"| model | batch | time | state | product | 1 thread | {many} threads | gain |")
    print("|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        for size in SIZES:
            one, more = (1e3 * seconds(name, size, threads) for threads in (1, many))
            product = size[0] * size[1] * size[2]
            print(
                f"| {name} | {' | '.join(map(str, size))} | {product:,} | {one:.1f} | {more:.1f} | {one / more:.2f} |"
            )


if __name__ == "__main__":
    main()
