"""The training loop: epochs of shuffled batches, a validation after each, and the weights of the best epoch."""

import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cru.compute import threads_for
from cru.data import SeriesSet
from cru.data.random import generator
from cru.errors import InputError, RunError, require_extra
from cru.evaluation import evaluate
from cru.evaluation.metrics import BERNOULLI, GAUSSIAN
from cru.models import Model
from cru.training.callbacks import Callback
from cru.training.nonfinite import nonfinite_error
from cru.training.settings import TrainingSettings


@dataclass
class Progress:
    """The progress of a run. A checkpoint stores it as JSON."""

    epoch: int = 0  # number of finished epochs
    best_epoch: int = 0
    best_score: float = math.inf
    skipped: int = 0  # number of skipped steps
    skipped_in_a_row: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def done(self, settings: TrainingSettings) -> bool:
        """Return whether training ends: by the number of epochs, the time limit or early stopping.

        A model improves most in the second half of a cosine schedule, so early stopping waits for this half.
        """
        share = max(self.epoch / settings.epochs, self.share_of_time(settings) if self.epoch else 0.0)
        waited = settings.patience is not None and self.epoch - self.best_epoch >= settings.patience
        return share >= 1 or (waited and (settings.schedule != "cosine" or share >= 0.5))

    def share_of_time(self, settings: TrainingSettings) -> float:
        """Return the used fraction of the time limit, or 0 without a limit.

        The limit counts processor time, so that other programs on the machine do not shorten the training.
        """
        if settings.minutes is None:
            return 0.0
        spent: float = sum(record["processor_seconds"] for record in self.history)
        return spent / (60 * settings.minutes)


class Checkpointer:
    """A store of the weights of the best epoch in memory. A subclass can store them elsewhere."""

    def save(self, loop: "Loop", *, better: bool) -> None:
        """Save a finished epoch. ``better`` means that its validation score is the best so far."""
        if better:
            self.weights = {name: tensor.detach().clone() for name, tensor in loop.model.state_dict().items()}

    def best_weights(self) -> dict[str, Tensor]:
        """Return the weights of the best epoch."""
        return self.weights


class Engine:
    """The processes of a training loop: one, or those that `torchrun` or `accelerate launch` started.

    After the backward pass, the gradients of the processes are averaged, weighted by their numbers of time points with
    a target. For a loss that is a mean over such time points, a step is the same for any number of processes.

    Attributes:
        device: the device of this process.
        share: the index of this process, and the number of processes.

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
        """Whether this is the only process that writes and prints."""
        return self.share[0] == 0

    def first(self) -> Any:
        """Return a context that one process of each machine enters before the others, to fill a cache, for example."""
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
            raise RunError("another process of this run has ended.") from error
        return summed

    def average(self, module: nn.Module, loss: Tensor, weight: float) -> tuple[float, float]:
        """Compute the weighted mean of loss and gradients over the processes, and the sum of the weights.

        Args:
            module: the module, whose gradients are replaced by their means.
            loss: the loss of this process.
            weight: the weight of this process.

        Returns:
            The mean loss, and the sum of the weights.
        """
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


class Loop:
    """The training of a model on series.

    All random numbers depend on (seed, epoch) only. An interrupted run that continues from its last checkpoint
    therefore reaches the same weights.

    Args:
        settings: epochs, batch size, optimizer, schedule and early stopping.
        model: the model, which is trained in place and moved to the device of ``engine``.
        train: training series with a task.
        validation: series that determine the best epoch.
        seed: the seed of the order of the series and of the random numbers of the model.
        engine: the processes that train together. Default: those that `torchrun` started.
        checkpointer: the store of the best epoch. Default: in memory.
        callback: the callback of the start, of each step and epoch, and of the end.
        renew: the function that makes the training series of each epoch, counted from 0. Their number must not change.

    Raises:
        InputError: ``settings.monitor`` is not a score of the task.

    >>> loop = Loop(TrainingSettings(epochs=5), model, splits.train, splits.validation)  # doctest: +SKIP
    >>> loop.run()  # doctest: +SKIP
    >>> model.load_state_dict(loop.checkpointer.best_weights())  # doctest: +SKIP
    """

    def __init__(
        self,
        settings: TrainingSettings,
        model: Model,
        train: SeriesSet,
        validation: SeriesSet,
        *,
        seed: int = 0,
        engine: Engine | None = None,
        checkpointer: Checkpointer | None = None,
        callback: Callback | None = None,
        renew: Callable[[int], SeriesSet] | None = None,
    ) -> None:
        self.settings, self.seed, self.engine = settings, seed, engine or Engine()
        known = BERNOULLI if validation.task and validation.task.likelihood == "bernoulli" else GAUSSIAN
        if self.settings.monitor not in known:
            hint = f"There are {', '.join(known)}."
            raise InputError("monitor", "be a score of this task", repr(self.settings.monitor), hint)
        self.model = model.to(self.engine.device)
        self.train, self.validation, self.renew = train, validation, renew
        self.callback, self.checkpointer = callback or Callback(), checkpointer or Checkpointer()
        self.optimizer = make_optimizer(model, self.settings)
        self.progress = Progress()
        self.batches = math.ceil(len(train) / self.settings.batch_size)

    def run(self) -> Progress:
        """Train until all epochs are done, or until the time limit, early stopping or the callback ends the training.

        Raises:
            RunError: the loss or its gradient is not finite in ``max_skipped`` consecutive steps.
        """
        self.callback.on_start(self.settings.epochs, self.batches, self.progress.history)
        cuda = [self.engine.device] if self.engine.device.type == "cuda" else []
        try:
            work = self.model.work(*self.train.largest_batch(self.settings.batch_size))
            with threads_for(work), torch.random.fork_rng(devices=cuda):  # restores the random state of the caller
                self._all_epochs()
        finally:
            self.callback.on_end()
        return self.progress

    def _all_epochs(self) -> None:
        while not self.progress.done(self.settings):
            record = self._epoch(self.progress.epoch)
            if record is None:
                return
            self._finish(record)

    def _epoch(self, epoch: int) -> dict[str, Any] | None:
        """Train and validate for one epoch, and return its record. None: the callback ends the training within it."""
        start, begun, total, count, steepest = time.perf_counter(), time.process_time(), 0.0, 0.0, 0.0
        torch.manual_seed(_draw(self.seed, epoch, self.engine.share[0]))
        self.model.train()
        if self.renew is not None:
            self.train = self.renew(epoch)
        order = generator((self.seed, epoch), "order").permutation(len(self.train))
        for number in range(self.batches):
            chosen = order[number * self.settings.batch_size :][: self.settings.batch_size]
            loss, points, norm = self._step(chosen, epoch, number)
            if math.isfinite(loss):
                total, count, steepest = total + loss * points, count + points, max(steepest, norm)
            self.callback.on_step(number + 1, total / max(count, 1))
            if self.callback.should_stop():
                return None
        trained = time.perf_counter()
        scores = evaluate(
            self.model,
            self.validation,
            batch_size=self.settings.batch_size,
            device=self.engine.device,
            share=self.engine.share,
            total=self.engine.total,
        )
        # The mean over the processes, because all must stop at the same epoch.
        clocks = [trained - start, time.perf_counter() - trained, time.process_time() - begun]
        spent = self.engine.total(torch.tensor(clocks, dtype=torch.float64)) / self.engine.share[1]
        seconds, validation_seconds, processor_seconds = spent.tolist()
        return {
            "epoch": epoch + 1,
            "loss": total / max(count, 1),
            "gradient": steepest,
            "validation": scores.as_dict(),
            "skipped": self.progress.skipped,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "seconds": round(seconds, 3),
            "validation_seconds": round(validation_seconds, 3),
            "processor_seconds": round(processor_seconds, 3),
        }

    def _step(self, chosen: np.ndarray, epoch: int, number: int) -> tuple[float, float, float]:
        """Compute one step of the optimizer on the series ``chosen``, in all processes together.

        Return the loss, the number of time points in its mean, and the norm of the gradient before clipping.
        """
        rank, world = self.engine.share
        steps = self.settings.epochs * self.batches
        # With a time limit, the schedule follows the larger fraction, so that it ends within the limit.
        step = max(epoch * self.batches + number, int(self.progress.share_of_time(self.settings) * steps))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, step, steps)
        mine = chosen[rank::world]
        batch = self.train.batch(mine if len(mine) else chosen[:1], dtype=self.model.dtype).to(self.engine.device)
        points = float(batch.target_mask.flatten(2).any(-1).sum()) if len(mine) else 0.0
        self.optimizer.zero_grad()
        loss = self.model.loss(batch, progress=min(1.0, step / steps))
        loss.backward()  # type: ignore[no-untyped-call]
        mean, points = self.engine.average(self.model, loss, points)
        norm = clip_gradient(self.model, self.settings.clip or math.inf)
        clipped = min(norm, self.settings.clip or math.inf)  # Adam squares it: an overflow would remain in its moments
        if math.isfinite(mean) and math.isfinite(norm) and clipped < torch.finfo(self.model.dtype).max ** 0.5:
            self.optimizer.step()
            self.progress.skipped_in_a_row = 0
            return mean, points, norm
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        if self.progress.skipped_in_a_row >= self.settings.max_skipped:
            skipped = self.progress.skipped_in_a_row
            raise nonfinite_error(self.model, batch, epoch=epoch + 1, number=number + 1, skipped=skipped)
        return math.nan, 0.0, math.nan

    def _finish(self, record: dict[str, Any]) -> None:
        """Add the epoch to the progress, save a checkpoint, and call the callback."""
        progress, validation = self.progress, record["validation"]
        score = validation[validation["scored"]].get(self.settings.monitor, math.inf)
        score = math.inf if math.isnan(score) else score
        progress.epoch = record["epoch"]
        better = score < progress.best_score or progress.best_epoch == 0 or self.settings.keep == "last"
        if better:
            progress.best_epoch, progress.best_score = progress.epoch, score
        progress.history.append(record)
        self.checkpointer.save(self, better=better)
        self.callback.on_epoch(record, better=better)


def learning_rate(settings: TrainingSettings, step: int, steps: int) -> float:
    """Compute the learning rate of a step.

    Args:
        settings: the settings of the schedule.
        step: the number of the step, from 0.
        steps: the number of all steps.

    >>> from cru.training import TrainingSettings
    >>> from cru.training.loop import learning_rate
    >>> learning_rate(TrainingSettings(learning_rate=0.1, schedule="cosine", floor=0.0), 50, 101)
    0.05
    """
    rate, floor = settings.learning_rate, settings.floor * settings.learning_rate
    if step < settings.warmup:
        return rate * (step + 1) / (settings.warmup + 1)
    if settings.schedule == "exponential":
        return max(rate * settings.decay ** (step - settings.warmup), floor)
    if settings.schedule == "cosine":
        done = (step - settings.warmup) / max(1, steps - 1 - settings.warmup)
        return floor + (rate - floor) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if settings.schedule == "step" and step * settings.epochs >= settings.decay_epoch * steps:
        return rate * settings.decay
    return rate


def make_optimizer(model: nn.Module, options: TrainingSettings) -> torch.optim.Optimizer:
    """Make the optimizer of the settings: Adam, AdamW or Adamax."""
    trained = list(model.parameters()) or [nn.Parameter(torch.empty(0))]  # a naive model has no parameters
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adamax": torch.optim.Adamax,
    }
    return kinds[options.optimizer](trained, lr=options.learning_rate, weight_decay=options.weight_decay)


def clip_gradient(model: nn.Module, limit: float) -> float:
    """Clip the norm of the gradient to ``limit`` and return the norm before clipping.

    The norm is computed in float64. In float32 a norm of 1e20 would overflow, and the step would be skipped.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
    if limit < norm < math.inf:
        torch._foreach_mul_(gradients, limit / norm)
    return norm


def _draw(seed: int, epoch: int, rank: int) -> int:
    """Make the seed of the random numbers of a model in one epoch, such as dropout and samples of a code."""
    return int(generator((seed, epoch, rank), "draws").integers(2**63))
