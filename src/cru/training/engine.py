"""The processes of a run, over Hugging Face Accelerate: one core, several GPUs or several machines."""

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from cru.errors import RunError


class Engine:
    """What the loop has to know of where it runs. One process unless `torchrun` or `accelerate launch` started it.

    The gradients of the processes are added up after the backward pass, weighted by what each of them counted, so that
    a step is the same whatever the number of processes, for a loss that is a mean over time points with a target.
    """

    def __init__(self) -> None:
        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())  # times are float64, which MPS lacks

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def share(self) -> tuple[int, int]:
        """The number of this process, and of how many."""
        return self.accelerator.process_index, self.accelerator.num_processes

    @property
    def main(self) -> bool:
        """Whether this process writes and speaks for all."""
        return bool(self.accelerator.is_main_process)

    def first(self) -> Any:
        """A context that one process on each machine goes through before the others, to fill a cache, say."""
        return self.accelerator.local_main_process_first()

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.share[1] == 1:
            return tensor
        try:
            summed: Tensor = self.accelerator.reduce(tensor.to(self.device), reduction="sum")
        except RuntimeError as error:
            raise RunError("another worker of this run has ended, so this one stops; --resume goes on.") from error
        return summed

    def average(self, module: nn.Module, loss: Tensor, weight: float) -> tuple[float, float]:
        """Weighted mean of loss and gradients over the processes, and the sum of the weights."""
        if self.share[1] == 1:
            return float(loss.detach()), weight
        grads = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        flat = torch.cat([*(grad.flatten() for grad in grads), loss.detach().reshape(1)])
        flat = self.total(torch.cat([flat * weight, flat.new_tensor([weight])]))
        mean = flat[:-1] / flat[-1].clamp(min=1)
        for grad, fresh in zip(grads, torch.split(mean[:-1], [grad.numel() for grad in grads]), strict=True):
            grad.copy_(fresh.reshape(grad.shape))
        return float(mean[-1]), float(flat[-1])
