"""The processes of a run: one, or several over Hugging Face Accelerate."""

import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cru.errors import RunError
from cru.extras import require_extra


class Engine:
    """Where the training loop runs: in one process, or in those that `torchrun` or `accelerate launch` started.

    After the backward pass, the gradients of the processes are added up, weighted by what each of them counted. For a
    loss that is a mean over time points with a target, a step is therefore the same for any number of processes.

    Attributes:
        device: where this process computes.
        share: the number of this process, and of how many.

    Raises:
        MissingExtraError: there are several processes, and accelerate is not installed.
    """

    def __init__(self) -> None:
        cuda = torch.cuda.is_available()  # not MPS: times are float64, which it lacks
        self.device, self.share = torch.device("cuda" if cuda else "cpu"), (0, 1)
        self._accelerator: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self._accelerator = require_extra("accelerate", "distributed").Accelerator(cpu=not cuda)
            self.device = self._accelerator.device
            self.share = self._accelerator.process_index, self._accelerator.num_processes

    @property
    def main(self) -> bool:
        """Whether this process writes and prints for all."""
        return self.share[0] == 0

    def first(self) -> Any:
        """Return a context that one process on each machine passes before the others, to fill a cache, for example."""
        return nullcontext() if self._accelerator is None else self._accelerator.local_main_process_first()

    def total(self, tensor: Tensor) -> Tensor:
        """Compute the sum over all processes.

        Raises:
            RunError: another process has ended.
        """
        if self._accelerator is None:
            return tensor
        try:
            summed: Tensor = self._accelerator.reduce(tensor.to(self.device), reduction="sum")
        except RuntimeError as error:
            raise RunError("another worker of this run has ended, so this one stops; --resume goes on.") from error
        return summed

    def average(self, module: nn.Module, loss: Tensor, weight: float) -> tuple[float, float]:
        """Compute the weighted mean of loss and gradients over the processes, and the sum of the weights."""
        if self._accelerator is None:
            return float(loss.detach()), weight
        grads = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        flat = torch.cat([*(grad.flatten() for grad in grads), loss.detach().reshape(1)])
        flat = self.total(torch.cat([flat * weight, flat.new_tensor([weight])]))
        mean = flat[:-1] / flat[-1].clamp(min=1)
        for grad, fresh in zip(grads, torch.split(mean[:-1], [grad.numel() for grad in grads]), strict=True):
            grad.copy_(fresh.reshape(grad.shape))
        return float(mean[-1]), float(flat[-1])

    def end(self) -> None:
        """Leave the group of processes."""
        if self._accelerator is not None:
            self._accelerator.end_training()
