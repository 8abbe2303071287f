"""The naive models against plain arithmetic, and against the table of trivial predictors on the real data."""

from pathlib import Path

import numpy as np
import pytest
import torch

import cru
from cru.models import Spec, create, spec_of
from tests.models.helpers import changed, random_batch

SPEC = Spec(input_shape=(1,), target_shape=(1,), time_start=0.0, time_end=8.0)


def one_series(values: list[float | None], times: list[float] | None = None, targets: list[float] | None = None):
    batch = random_batch(SPEC, 1, len(values))
    number = torch.tensor([0.0 if v is None else v for v in values])[None, :, None]
    mask = torch.tensor([v is not None for v in values])[None, :, None]
    return changed(
        batch,
        times=torch.tensor(times or list(range(len(values)))).double()[None],
        values=number,
        mask=mask,
        targets=number if targets is None else torch.tensor(targets)[None, :, None],
        target_mask=mask if targets is None else torch.ones_like(mask),
        hidden=torch.zeros_like(mask),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", [5, 5, 5, 5, 5]),
        ("series-mean", [5, 2, 2, 4, 4]),
        ("last-value", [5, 2, 2, 6, 6]),
        ("linear", [2, 2, 3, 6, 6]),
        ("blend", [5, 0.8 * 2 + 1, 0.8 * 2 + 1, 0.3 * 6 + 0.5 * 4 + 1, 0.3 * 6 + 0.5 * 4 + 1]),
    ],
)
def test_rules(name: str, expected: list[float]) -> None:
    model = create(name, SPEC)
    model.prepare([one_series([4.0, 6.0, None])])
    found = model(one_series([None, 2.0, None, 6.0, None], times=[0, 1, 2, 5, 6])).mean.flatten()
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def test_linear_is_that_of_numpy() -> None:
    batch = random_batch(SPEC, 1, 12, observed=0.5)
    model = create("linear", SPEC)
    seen = batch.mask[0, :, 0]
    expected = np.interp(batch.times[0], batch.times[0, seen], batch.values[0, seen, 0])
    np.testing.assert_allclose(model(batch).mean[0, :, 0], expected, rtol=1e-5)


def test_the_variance_is_that_of_the_errors() -> None:
    model = create("mean", SPEC)
    model.prepare([one_series([1.0, 3.0]), one_series([5.0, 7.0, None])])
    prediction = model(one_series([0.0]))
    assert prediction.mean.item() == 4
    assert prediction.var.item() == 5


def seasonal(count: int, seed: int, period: float):
    generator = torch.Generator().manual_seed(seed)
    spec = Spec(input_shape=(1,), target_shape=(1,), time_start=0.0, time_end=100.0)
    batch = random_batch(spec, count, 60, seed=seed)
    times = 100 * torch.rand(count, 60, generator=generator, dtype=torch.float64).sort(1).values
    offset = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    values = (torch.sin(2 * torch.pi * times / period) + offset)[..., None].float()
    mask = torch.ones_like(values, dtype=torch.bool)
    lengths = torch.full((count,), 60)
    shown = mask & (torch.arange(60) < 30)[:, None]
    inputs = {"values": torch.where(shown, values, 0.0), "mask": shown, "hidden": mask & ~shown}
    return spec, changed(batch, times=times, targets=values, target_mask=mask, lengths=lengths, **inputs)


@pytest.mark.parametrize("period", [0.07, 0.5, 0.93, 3.1, 10.0, 25.0, 40.0])
def test_climatology_finds_period_season_and_offset(period: float) -> None:
    spec, train = seasonal(400, 0, period)
    model = create("climatology", spec, bins=50)
    model.prepare([train])
    assert model.period.item() == pytest.approx(period, rel=2e-3)
    _, test = seasonal(50, 1, period)
    error = (model(test).mean - test.targets)[test.hidden].square().mean()
    assert error < 0.05
    given = create("climatology", spec, bins=50, period=period)
    given.prepare([train])
    assert given.period.item() == pytest.approx(period)


@pytest.mark.parametrize("period", [7.0, 30.4, 365.25])
def test_the_period_of_daily_observations_is_not_an_alias(period: float) -> None:
    """Whole days cannot tell a year from the cycle that turns once a day and once a year."""
    times = torch.arange(1461).tolist()
    values = [float(np.sin(2 * np.pi * t / period)) for t in times]
    model = create("climatology", Spec(input_shape=(1,), target_shape=(1,), time_end=1460.0))
    model.prepare([one_series(values, times)])
    assert model.period.item() == pytest.approx(period, rel=5e-3)


TABLE = {  # of trivial predictors, MSE x 1e-2 on the extrapolated part
    ("ushcn", "mean"): ({}, 1.64),
    ("ushcn", "series-mean"): ({}, 1.44),
    ("ushcn", "season alone"): ({"offset": False, "period": 365.25, "bins": 366}, 1.13),
    ("ushcn", "climatology"): ({"period": 365.25, "bins": 366}, 0.93),
    ("physionet", "mean"): ({}, 1.15),
    ("physionet", "series-mean"): ({}, 0.53),
    ("physionet", "last-value"): ({}, 0.50),
    ("physionet", "blend"): ({}, 0.44),
}
ROUNDING = 0.005


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["ushcn", "physionet"])
def test_the_table_of_trivial_predictors(dataset: str, real_data: Path, shared_cache: Path) -> None:
    """The table was made on one unknown split, with the published preprocessing of PhysioNet. Outliers set the range
    that a set is scaled with, so splits differ: each number has to lie among those of three splits, to its rounding."""
    options = {"published": True} if dataset == "physionet" else {}
    cut = {"time": 24.0} if dataset == "physionet" else {"fraction": 0.5}
    found: dict[str, list[float]] = {}
    for seed in range(3):
        splits = cru.data.load(dataset, data_dir=real_data, cache=shared_cache, seed=seed, **options)
        splits = splits.map(lambda part: cru.data.extrapolation(part, **cut))
        train, test = list(splits.train.batches(500)), list(splits.test.batches(500))
        for (which, name), (choice, _) in TABLE.items():
            if which != dataset:
                continue
            model = create("climatology" if choice else name, spec_of(splits.train), **choice)
            model.prepare(train)
            errors = torch.zeros(2, dtype=torch.float64)
            for batch in test:
                squares = (model(batch).mean - batch.targets).square()[batch.hidden].double()
                errors += torch.stack([squares.sum(), torch.tensor(float(squares.numel())).double()])
            found.setdefault(name, []).append(100 * float(errors[0] / errors[1]))
    for name, scores in found.items():
        print(f"{dataset} {name}: {[round(s, 3) for s in scores]}, table {TABLE[dataset, name][1]}")
    for name, scores in found.items():
        assert min(scores) - ROUNDING <= TABLE[dataset, name][1] <= max(scores) + ROUNDING, name
