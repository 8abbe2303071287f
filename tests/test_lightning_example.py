"""The one block of the documentation that needs Lightning, which is not installed: it runs with a stand-in."""

import re
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

PAGE = Path(__file__).parent.parent / "docs" / "tutorials" / "layer-in-your-module.md"


class Module(nn.Module):
    def log(self, name: str, value: torch.Tensor) -> None:
        assert torch.isfinite(value)


class Trainer:
    """One pass over the data, as Lightning would make it."""

    def __init__(self, *, max_epochs: int, gradient_clip_val: float) -> None:
        self.losses: list[float] = []

    def fit(self, module, loader) -> None:
        optimiser = module.configure_optimizers()
        for number, batch in enumerate(loader):
            optimiser.zero_grad()
            loss = module.training_step(batch, number)
            loss.backward()
            optimiser.step()
            self.losses.append(loss.item())


def test_the_lightning_module_trains(monkeypatch) -> None:
    stand_in = ModuleType("lightning")
    stand_in.LightningModule, stand_in.Trainer = Module, Trainer
    monkeypatch.setitem(sys.modules, "lightning", stand_in)
    torch.manual_seed(0)
    (block,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.S)
    times = 10 * torch.rand(512, 20).sort(1).values
    names = {"windows": lambda count: (torch.sin(times)[..., None], times, torch.sin(times)[..., None])}
    exec(compile(block, PAGE.name, "exec"), names)
    losses = names["trainer"].losses
    assert losses[-1] < losses[0]
