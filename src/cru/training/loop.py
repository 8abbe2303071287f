"""The training loop: epochs of shuffled batches, a validation after each, the best and the last checkpoint."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cru.data import SeriesSet
from cru.data.random import generator
from cru.errors import RunError
from cru.evaluation import evaluate
from cru.evaluation.metrics import BERNOULLI, GAUSSIAN
from cru.models import Model
from cru.models.loading import check_tensors
from cru.schema import check
from cru.threads import threads_for
from cru.training.checkpoint import pack_optimizer, under_prefix, unpack_optimizer, with_prefix, write_checkpoint
from cru.training.engine import Engine
from cru.training.experiment import data_version
from cru.training.guard import give_up
from cru.training.listener import Listener
from cru.training.schedule import learning_rate
from cru.training.schemas import RunHeader
from cru.training.settings import RunSettings, TrainingSettings


@dataclass
class Progress:
    """How far a run has come; JSON in its checkpoint."""

    epoch: int = 0  # epochs done
    best_epoch: int = 0
    best_score: float = math.inf
    skipped: int = 0  # steps in all
    skipped_in_a_row: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def done(self, settings: TrainingSettings) -> bool:
        """All epochs are over, or the time is, or none has been better for long enough."""
        waited = self.epoch - self.best_epoch
        late = self.epoch > 0 and self.share_of_time(settings) >= 1
        return self.epoch >= settings.epochs or late or (settings.patience is not None and waited >= settings.patience)

    def share_of_time(self, settings: TrainingSettings) -> float:
        """How much of the minutes is spent, 0 where there is no limit."""
        if settings.minutes is None:
            return 0.0
        spent: float = sum(record["seconds"] + record["validation_seconds"] for record in self.history)
        return spent / (60 * settings.minutes)


class Loop:
    """Trains a model on series. Everything random is drawn anew from (seed, epoch), so a run that was cut short goes on
    from its last checkpoint to the very same weights. ``renew`` gives the training series of each epoch (numbered from
    0), where what is withheld of them changes; there must be as many as in ``train``.

    >>> loop = Loop(settings, model, splits.train, splits.validation, engine=Engine(), folder=out)  # doctest: +SKIP
    >>> loop.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        settings: RunSettings,
        model: Model,
        train: SeriesSet,
        validation: SeriesSet,
        *,
        engine: Engine,
        folder: Path,
        listener: Listener | None = None,
        renew: Callable[[int], SeriesSet] | None = None,
    ) -> None:
        self.settings, self.options, self.engine, self.folder = settings, settings.training, engine, folder
        known = BERNOULLI if validation.task and validation.task.likelihood == "bernoulli" else GAUSSIAN
        if self.options.monitor not in known:
            raise ValueError(
                f"`training.monitor` must be a score of this task, got {self.options.monitor!r}; "
                f"there are {', '.join(known)}."
            )
        self.model = model.to(engine.device)
        self.train, self.validation, self.renew = train, validation, renew
        self.listener = listener or Listener()
        self.optimizer = make_optimizer(model, self.options)
        self.progress = Progress()
        self.batches = math.ceil(len(train) / self.options.batch_size)

    def run(self) -> Progress:
        """Go on until it is done."""
        self.listener.begin(self.options.epochs, self.batches, self.progress.history)
        cuda = [self.engine.device] if self.engine.device.type == "cuda" else []
        try:
            work = work_of(self.model, self.train, self.options.batch_size)
            with threads_for(work), torch.random.fork_rng(devices=cuda):  # the caller's draws stay as they were
                self._all_epochs()
        finally:
            self.listener.end()
        return self.progress

    def _all_epochs(self) -> None:
        while not self.progress.done(self.options):
            self._finish(self._epoch(self.progress.epoch))

    def _epoch(self, epoch: int) -> dict[str, Any]:
        start, total, count, steepest = time.perf_counter(), 0.0, 0.0, 0.0
        torch.manual_seed(_draw(self.settings.seed, epoch, self.engine.share[0]))
        self.model.train()
        if self.renew is not None:
            self.train = self.renew(epoch)
        order = generator((self.settings.seed, epoch), "order").permutation(len(self.train))
        for number in range(self.batches):
            chosen = order[number * self.options.batch_size :][: self.options.batch_size]
            loss, points, norm = self._step(chosen, epoch, number)
            if math.isfinite(loss):
                total, count, steepest = total + loss * points, count + points, max(steepest, norm)
            self.listener.step(number + 1, total / max(count, 1))
        trained = time.perf_counter()
        scores = evaluate(
            self.model,
            self.validation,
            batch_size=self.options.batch_size,
            device=self.engine.device,
            share=self.engine.share,
            total=self.engine.total,
        )
        # The same for all processes, which must agree when the time is over.
        spent = torch.tensor([trained - start, time.perf_counter() - trained], dtype=torch.float64)
        seconds, validation_seconds = (self.engine.total(spent) / self.engine.share[1]).tolist()
        return {
            "epoch": epoch + 1,
            "loss": total / max(count, 1),
            "gradient": steepest,
            "validation": scores.as_dict(),
            "skipped": self.progress.skipped,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "seconds": round(seconds, 3),
            "validation_seconds": round(validation_seconds, 3),
        }

    def _step(self, chosen: np.ndarray, epoch: int, number: int) -> tuple[float, float, float]:
        """One step of the optimizer on the series ``chosen`` by all processes together; the loss, the time points that
        it is a mean over, and the norm of the gradient before clipping."""
        rank, world = self.engine.share
        steps = self.options.epochs * self.batches
        # With a limit of time, the schedule goes by whatever is further, so that it ends before the time does.
        step = max(epoch * self.batches + number, int(self.progress.share_of_time(self.options) * steps))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.options, step, steps)
        mine = chosen[rank::world]
        batch = self.train.batch(mine if len(mine) else chosen[:1], dtype=self.model.dtype).to(self.engine.device)
        points = float(batch.target_mask.flatten(2).any(-1).sum()) if len(mine) else 0.0
        self.optimizer.zero_grad()
        loss = self.model.loss(batch, progress=min(1.0, step / steps))
        loss.backward()  # type: ignore[no-untyped-call]
        mean, points = self.engine.average(self.model, loss, points)
        norm = clip_gradient(self.model, self.options.clip or math.inf)
        taken = min(norm, self.options.clip or math.inf)  # Adam squares it, and never forgets an infinity
        if math.isfinite(mean) and math.isfinite(norm) and taken < torch.finfo(self.model.dtype).max ** 0.5:
            self.optimizer.step()
            self.progress.skipped_in_a_row = 0
            return mean, points, norm
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        if self.progress.skipped_in_a_row >= self.options.max_skipped:
            skipped = self.progress.skipped_in_a_row
            raise give_up(self.model, batch, epoch=epoch + 1, number=number + 1, skipped=skipped)
        return math.nan, 0.0, math.nan

    def _finish(self, record: dict[str, Any]) -> None:
        """Take the epoch into the progress, keep it on disk, and tell."""
        progress, validation = self.progress, record["validation"]
        score = validation[validation["scored"]].get(self.options.monitor, math.inf)
        score = math.inf if math.isnan(score) else score
        progress.epoch = record["epoch"]
        better = score < progress.best_score or progress.best_epoch == 0 or self.options.keep == "last"
        if better:
            progress.best_epoch, progress.best_score = progress.epoch, score
        progress.history.append(record)
        if self.engine.main:
            if better:
                self.save(self.best)
            self.save(self.last, with_prefix("optimizer.", pack_optimizer(self.optimizer)))
        self.listener.epoch(record, better=better)

    @property
    def best(self) -> Path:
        """The weights of the epoch with the best validation score."""
        return self.folder / "best.safetensors"

    @property
    def last(self) -> Path:
        """Everything to go on from."""
        return self.folder / "last.safetensors"

    def save(self, path: Path, more: dict[str, torch.Tensor] | None = None) -> None:
        """Write weights, settings and progress."""
        header = {
            "settings": self.settings.as_dict(),
            "data_version": data_version(self.settings),
            "spec": self.model.spec.as_dict(),
            "progress": vars(self.progress),
        }
        write_checkpoint(path, with_prefix("model.", self.model.state_dict()) | (more or {}), header)

    def restore(self, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        """Go on from a checkpoint that was read with `read_checkpoint`."""
        check(RunHeader, header, self.last)
        weights = under_prefix("model.", tensors)
        check_tensors(weights, self.model.state_dict(), self.last)
        self.model.load_state_dict(weights)
        unpack_optimizer(self.optimizer, under_prefix("optimizer.", tensors))
        self.progress = Progress(**header["progress"])
        epochs = self.engine.total(torch.tensor([float(self.progress.epoch)]))
        if float(epochs) != self.progress.epoch * self.engine.share[1]:
            raise RunError(f"the workers see different checkpoints: {self.folder} must be on a disk that all share.")


def work_of(model: Model, series: SeriesSet, batch_size: int) -> int:
    """Batch x time x state of the largest batch; the inputs count where there are more of them, as with images."""
    size = max(getattr(model.config, "hidden_size", None) or 1, math.prod(model.spec.input_shape))
    return min(batch_size, len(series)) * int(series.lengths.max(initial=0)) * size


def make_optimizer(model: nn.Module, options: TrainingSettings) -> torch.optim.Optimizer:
    """Adam; AdamW, whose weight decay does not pass through the moments; or Adamax, with the largest gradient."""
    trained = list(model.parameters()) or [nn.Parameter(torch.empty(0))]  # a rule has nothing to train
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adamax": torch.optim.Adamax,
    }
    return kinds[options.optimizer](trained, lr=options.learning_rate, weight_decay=options.weight_decay)


def clip_gradient(model: nn.Module, limit: float) -> float:
    """Shorten the gradient to ``limit`` and return its norm as it was.

    The norm is taken in double precision: in single one of 1e20 overflows, and the very steps that clipping is there
    for would be lost.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
    if limit < norm < math.inf:
        torch._foreach_mul_(gradients, limit / norm)
    return norm


def _draw(seed: int, epoch: int, rank: int) -> int:
    """A seed for everything that a model draws in an epoch: dropout, samples of a code."""
    return int(generator((seed, epoch, rank), "draws").integers(2**63))
