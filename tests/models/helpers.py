"""Small random batches of every kind of data, and changed copies of them."""

import copy
import dataclasses
from functools import cache

import torch
from torch import Tensor

from cru.data import Batch
from cru.models import Model, Spec, create

SPECS = {
    "features": Spec(input_shape=(3,), target_shape=(3,), time_start=0.0, time_end=10.0),
    "labels": Spec(input_shape=(3,), target_shape=(2,), time_start=0.0, time_end=10.0),
    "pictures": Spec(
        input_shape=(1, 24, 24), target_shape=(1, 24, 24), likelihood="bernoulli", time_start=0.0, time_end=10.0
    ),
    "angles": Spec(input_shape=(1, 24, 24), target_shape=(2,), time_start=0.0, time_end=10.0),
}


def random_batch(spec: Spec, batch: int = 3, steps: int = 6, *, seed: int = 0, observed: float = 0.6) -> Batch:
    """Series of different lengths, the first the longest, with missing entries and times between 0 and 10."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.rand(batch, steps, generator=generator, dtype=torch.float64).mul(10).sort(1).values
    lengths = torch.tensor([max(1, steps - 2 * i) for i in range(batch)])
    valid = torch.arange(steps) < lengths[:, None]
    times = torch.where(valid, times, times.gather(1, lengths[:, None] - 1))

    def random(shape: tuple[int, ...], share: float) -> tuple[Tensor, Tensor]:
        values = torch.rand(batch, steps, *shape, generator=generator)
        mask_shape = (1, 1, 1) if len(shape) == 3 else shape
        mask = torch.rand(batch, steps, *mask_shape, generator=generator) < share
        mask &= valid.reshape(batch, steps, *(1,) * len(shape))
        return torch.where(mask, values, 0.0), mask

    values, mask = random(spec.input_shape, observed)
    targets, target_mask = random(spec.target_shape, 0.8)
    return Batch(
        times=times,
        values=values,
        mask=mask,
        targets=targets,
        target_mask=target_mask,
        hidden=torch.zeros_like(target_mask),
        lengths=lengths,
        ids=tuple(str(i) for i in range(batch)),
    )


def changed(batch: Batch, **fields: Tensor) -> Batch:
    return dataclasses.replace(batch, **fields)


PER_TIME = ("times", "values", "mask", "targets", "target_mask", "hidden")


def steps_of(batch: Batch, count: int) -> Batch:
    """The first ``count`` time points."""
    cut = {name: getattr(batch, name)[:, :count] for name in PER_TIME}
    return changed(batch, **cut, lengths=batch.lengths.clamp(max=count))


def dropped(batch: Batch, count: int) -> Batch:
    """Without the first ``count`` time points."""
    cut = {name: getattr(batch, name)[:, count:] for name in PER_TIME}
    return changed(batch, **cut, lengths=(batch.lengths - count).clamp(min=0))


def reordered(batch: Batch, order: list[int]) -> Batch:
    names = (*PER_TIME, "lengths")
    return changed(batch, **{name: getattr(batch, name)[order] for name in names}, ids=tuple(str(i) for i in order))


def padded(batch: Batch, more: int) -> Batch:
    """The same series with a longer tail of padding."""

    def longer(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor.new_zeros(tensor.shape[0], more, *tensor.shape[2:])], 1)

    names = ("values", "mask", "targets", "target_mask", "hidden")
    times = torch.cat([batch.times, batch.times[:, -1:].expand(-1, more)], 1)
    return changed(batch, times=times, **{name: longer(getattr(batch, name)) for name in names})


def made(name: str, spec: Spec, *, seed: int = 0, dtype: torch.dtype = torch.float32, **options: object) -> Model:
    """A prepared model whose parameters differ from their initial values, so that every part has an influence."""
    if options:
        return _made(name, spec, seed, dtype, options)
    model, random_state = _cached(name, spec, seed, dtype)
    torch.set_rng_state(random_state)  # as after `_made`
    return copy.deepcopy(model)


@cache
def _cached(name: str, spec: Spec, seed: int, dtype: torch.dtype) -> tuple[Model, Tensor]:
    return _made(name, spec, seed, dtype, {}), torch.get_rng_state()


def _made(name: str, spec: Spec, seed: int, dtype: torch.dtype, options: dict[str, object]) -> Model:
    torch.manual_seed(seed)
    model = create(name, spec, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.to(dtype)
    model.prepare([random_batch(spec, 4, 8, seed=5)])
    return model
