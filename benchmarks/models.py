"""Speed of whole models: one training step of each, and of the Kalman models with the reference filter.

One thread, CPU time, best of several, all contenders in one run. `python benchmarks/models.py [--quick]`
Real PhysioNet batches where the raw files are found (CRU_DATA_DIR), else random ones of the same shape.
"""

import os
import sys
from typing import Any

import torch
from common import best, report

import cru
from cru.data import Batch
from cru.data.datasets import pendulum
from cru.functional import FilterResult, filter_sequence_reference, gaps
from cru.layers import KalmanLayer
from cru.models import MODELS, NAIVE, Model
from cru.training import create_paper

ODE = ("ode-rnn", "latent-ode", "gru-ode-b")


def physionet_batch() -> tuple[Batch, str]:
    """A batch of 100 patients, of the median length, for extrapolation."""
    if os.environ.get("CRU_DATA_DIR"):
        train = cru.data.load("physionet").train
        return cru.data.extrapolation(train.first(100), time=24.0).batch(range(100)), "real patients"
    generator = torch.Generator().manual_seed(0)
    times = 48 * torch.rand(100, 134, generator=generator, dtype=torch.float64).sort(1).values
    values = torch.rand(100, 134, 37, generator=generator)
    known = torch.rand(values.shape, generator=generator) < 0.16
    lengths = torch.randint(20, 125, (100,), generator=generator)
    lengths[0] = 134
    valid = torch.arange(134) < lengths[:, None]
    times = torch.where(valid, times, times.gather(1, lengths[:, None] - 1))
    known &= valid[..., None]
    mask = known & (times < 24)[..., None]
    batch = Batch(
        times=times,
        values=torch.where(mask, values, 0.0),
        mask=mask,
        targets=torch.where(known, values, 0.0),
        target_mask=known,
        hidden=known & ~mask,
        lengths=lengths,
        ids=tuple(map(str, range(100))),
    )
    return batch, "random"


def pendulum_batch() -> Batch:
    """50 sequences of 50 noisy images, for regression."""
    return cru.data.regression(pendulum.generate(pendulum.REGRESSION, 50), target="sin_cos").batch(range(50))


def training_step(model: Model, batch: Batch) -> None:
    model.zero_grad()
    model.loss(batch).backward()


class LiteralFilter(torch.nn.Module):
    """A layer whose filter is algorithm 1 as printed, step by step; everything else is the layer's own."""

    def __init__(self, layer: KalmanLayer) -> None:
        super().__init__()
        self.layer, self.observe, self.obs_size = layer, layer.observe, layer.obs_size

    @property
    def dtype(self) -> torch.dtype:
        return self.layer.dtype

    def filter(self, y: Any, y_var: Any, times: Any, mask: Any, state: Any = None) -> FilterResult:
        delta = gaps(times, None, self.layer.time_scale, y.dtype)
        observed = mask[..., None].expand_as(y)
        start = self.layer.initial(len(y))
        prior, posterior = filter_sequence_reference(self.layer.transition(), start, y, y_var, observed, delta)
        return FilterResult(prior, posterior, y_var)


def with_moved_transitions(model: Model) -> Model:
    """Move the transitions away from the identity, for which the matrix exponential has no cost."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "basis" in name or "eigen" in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def made(name: str, dataset: str) -> Model:
    torch.manual_seed(0)
    return with_moved_transitions(create_paper(name, dataset))


def side_by_side(batch: Batch, kind: str, quick: bool) -> None:
    rows = []
    base = float("nan")
    for name in MODELS:
        if name in NAIVE:
            continue
        model = made(name, "physionet")
        model.prepare([batch])
        model.train()
        training_step(model, batch)
        seconds = best(lambda model=model: training_step(model, batch), 3 if quick else 7)
        base = seconds if name == "cru" else base
        evaluations = model(batch, intermediates=True).intermediates.get("evaluations", "-")
        rows.append([name, model.num_parameters, evaluations, 1e3 * seconds, f"{seconds / base:.2f}"])
        print(f"{name}: {1e3 * seconds:.0f} ms", flush=True)
    shape = f"batch {len(batch)}, {batch.times.shape[1]} times, {kind}"
    columns = ["model", "parameters", "ODE evaluations", "training step (ms)", "times the CRU"]
    report("models", f"Training step on PhysioNet shapes ({shape}): one thread, CPU time", columns, rows)


def against_literal(batches: dict[str, Batch], quick: bool) -> None:
    rows = []
    for dataset, batch in batches.items():
        for name in ("cru", "f-cru", "rkn"):
            fast, literal = made(name, dataset), made(name, dataset).double()
            literal.layer = LiteralFilter(literal.layer)
            exact = batch.to(dtype=torch.float64)
            difference = abs(fast.loss(batch).item() / literal.loss(exact).item() - 1)
            training_step(fast, batch)
            quick_time = best(lambda model=fast, batch=batch: training_step(model, batch), 5 if quick else 15)
            slow_time = best(lambda model=literal, exact=exact: training_step(model, exact), 2 if quick else 4)
            ratio = f"{slow_time / quick_time:.1f}×"
            rows.append([dataset, name, 1e3 * slow_time, 1e3 * quick_time, ratio, f"{difference:.0e}"])
            print(f"{dataset} {name}: {ratio}", flush=True)
    columns = ["dataset", "model", "literal filter, float64 (ms)", "float32 (ms)", "ratio", "losses differ by"]
    report("models-reference", "Whole training step against the literal filter", columns, rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    physionet, kind = physionet_batch()
    side_by_side(physionet, kind, "--quick" in sys.argv)
    against_literal({"pendulum-regression": pendulum_batch(), "physionet": physionet}, "--quick" in sys.argv)
