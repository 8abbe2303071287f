"""The processes of a run, with Hugging Face Accelerate: one core, several GPUs or several machines."""

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from cru.errors import RunError


class Engine:
    """The processes that train together. There is one process unless `torchrun` or `accelerate launch` started more.

    After the backward pass, gradients are averaged over the processes, weighted by the number of time points with a
    target. A step is then independent of the number of processes, for a loss that is a mean over these time points.
    """

    def __init__(self) -> None:
        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())  # times are float64, which MPS lacks

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def share(self) -> tuple[int, int]:
        """The index of this process, and the number of processes."""
        return self.accelerator.process_index, self.accelerator.num_processes

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return bool(self.accelerator.is_main_process)

    def first(self) -> Any:
        """Return a context that one process on each machine runs before the others, for example to fill a cache."""
        return self.accelerator.local_main_process_first()

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.share[1] == 1:
            return tensor
        try:
            summed: Tensor = self.accelerator.reduce(tensor.to(self.device), reduction="sum")
        except RuntimeError as error:
            raise RunError("another process of this run has ended. Continue with --resume.") from error
        return summed

    def average(self, module: nn.Module, loss: Tensor, weight: float) -> tuple[float, float]:
        """Average loss and gradients over the processes. Return the mean loss and the sum of the weights."""
        if self.share[1] == 1:
            return float(loss.detach()), weight
        grads = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        flat = torch.cat([*(grad.flatten() for grad in grads), loss.detach().reshape(1)])
        flat = self.total(torch.cat([flat * weight, flat.new_tensor([weight])]))
        mean = flat[:-1] / flat[-1].clamp(min=1)
        for grad, fresh in zip(grads, torch.split(mean[:-1], [grad.numel() for grad in grads]), strict=True):
            grad.copy_(fresh.reshape(grad.shape))
        return float(mean[-1]), float(flat[-1])
