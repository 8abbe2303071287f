"""A worker of a data-parallel run on the tiny problem: `torchrun --nproc-per-node 2 -m tests.training.parallel OUT`."""

import os
import sys
from pathlib import Path

import torch

from cru.training import run
from cru.training.loop import Engine
from tests.training.tiny import tiny_settings, tiny_splits


def settings(model: str):
    return tiny_settings(model, epochs=4, dtype="float64")


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine = Engine()
    assert engine.share[1] == int(os.environ.get("WORLD_SIZE", "1"))
    run(settings(sys.argv[2]), Path(sys.argv[1]), splits=tiny_splits(23), engine=engine)
