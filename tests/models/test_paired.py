"""The stacked paired CRU: what is asked has no influence on what is said, features that are missing have no say."""

import dataclasses

import pytest
import torch

from cru.data import Batch
from cru.models import create
from cru.models.statistics import feature_moments
from tests.models.helpers import SPECS, made, random_batch

NAMES = ("paired", "paired-smoother")


def with_a_question(batch: Batch) -> Batch:
    """One more time at the end of the series 0, which has full length, half-way between its times 2 and 3."""
    one = {
        name: getattr(batch, name)[:1]
        for name in ("times", "values", "mask", "targets", "target_mask", "hidden", "lengths")
    }
    middle = one["times"][:, 2:4].mean(1, keepdim=True)

    def put(x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, :3], new, x[:, 3:]], 1)

    longer = {name: put(x, torch.zeros_like(x[:, :1])) for name, x in one.items() if name not in ("times", "lengths")}
    longer["times"], longer["lengths"] = put(one["times"], middle), one["lengths"] + 1
    return dataclasses.replace(batch, **longer, ids=("0",))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["features", "pictures"])
@pytest.mark.parametrize("modulated", [False, True])
def test_a_query_time_changes_no_other_prediction(name: str, kind: str, modulated: bool) -> None:
    model = made(name, SPECS[kind], dtype=torch.float64, modulated=modulated).eval()
    batch = random_batch(SPECS[kind])
    before, after = model(batch).mean[:1], model(with_a_question(batch)).mean
    assert after.shape[1] == 7
    torch.testing.assert_close(torch.cat([after[:, :3], after[:, 4:]], 1), before, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("modulated", [False, True])
def test_the_smoother_uses_later_observations_and_the_filter_does_not(modulated: bool) -> None:
    batch = random_batch(SPECS["features"], observed=1.0)
    later = dataclasses.replace(batch, values=batch.values.clone())
    later.values[:1, 4:] += 1
    for name, looks in (("paired", False), ("paired-smoother", True)):
        model = made(name, SPECS["features"], modulated=modulated).eval()
        assert bool((model(batch).mean[0, :4] - model(later).mean[0, :4]).abs().max() > 1e-5) is looks


def test_one_layer_of_both_agrees_where_there_is_nothing_later() -> None:
    options = {"layers": 1, "pairs": 4, "width": 8}
    one, two = (create(name, SPECS["angles"], **options).double().eval() for name in NAMES)
    two.load_state_dict(one.state_dict())
    batch = random_batch(SPECS["angles"])
    ends = batch.lengths - 1
    rows = torch.arange(3)
    torch.testing.assert_close(one(batch).mean[rows, ends], two(batch).mean[rows, ends], rtol=1e-6, atol=1e-8)


def test_units_do_not_matter() -> None:
    spec = SPECS["features"]
    torch.manual_seed(0)
    model = create("paired", spec).double().eval()
    batch = random_batch(spec)
    model.prepare([batch])
    expected = model(batch)
    factor, offset = torch.tensor([10.0, 0.1, 1.0]), torch.tensor([-3.0, 0.0, 100.0])
    other = dataclasses.replace(batch, values=torch.where(batch.mask, batch.values * factor + offset, 0.0))
    model.prepare([other])
    found = model(other)
    valid = batch.valid
    torch.testing.assert_close(found.mean[valid], (expected.mean * factor + offset)[valid], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.var[valid], (expected.var * factor**2)[valid], rtol=1e-4, atol=1e-9)


def test_the_loss_counts_hidden_targets_only() -> None:
    model, batch = made("paired", SPECS["features"]), random_batch(SPECS["features"])
    shown = batch.mask & batch.target_mask
    assert shown.any()
    assert (batch.target_mask & ~batch.mask).any()
    other = dataclasses.replace(batch, targets=torch.where(shown, 0.9 - batch.targets, batch.targets))
    torch.testing.assert_close(model.loss(batch), model.loss(other), rtol=0, atol=0)
    everything = dataclasses.replace(batch, target_mask=shown)
    changed = dataclasses.replace(everything, targets=other.targets)
    assert model.loss(everything) != model.loss(changed)


def test_moments_of_the_training_set() -> None:
    batches = [random_batch(SPECS["features"], seed=seed) for seed in range(3)]
    mean, std = feature_moments(batches)
    for i in range(3):
        seen = torch.cat([batch.values[..., i][batch.mask[..., i]] for batch in batches]).double()
        assert float(mean[i]) == pytest.approx(float(seen.mean()))
        assert float(std[i]) == pytest.approx(float(seen.std(correction=0)))
    offset = [dataclasses.replace(b, values=torch.where(b.mask, 1e9 + 1e-3 * b.values.double(), 0.0)) for b in batches]
    far, small = feature_moments(offset)
    torch.testing.assert_close(small, 1e-3 * std, rtol=1e-2, atol=0)
    torch.testing.assert_close(far, 1e9 + 1e-3 * mean, rtol=1e-12, atol=0)
    still = dataclasses.replace(batches[0], values=torch.where(batches[0].mask, 2.0, 0.0))
    assert feature_moments([still])[1].tolist() == [1.0, 1.0, 1.0]


def test_the_last_observation_changes_decay_and_frequency() -> None:
    plain, moved = (made("paired", SPECS["features"], modulated=modulated) for modulated in (False, True))
    moved.load_state_dict(plain.state_dict(), strict=False)
    batch = random_batch(SPECS["features"])
    for block in moved.blocks:
        torch.nn.init.zeros_(block.shift.weight)
        torch.nn.init.zeros_(block.shift.bias)
    torch.testing.assert_close(moved(batch).mean, plain(batch).mean, rtol=1e-4, atol=1e-5)
    for block in moved.blocks:
        torch.nn.init.normal_(block.shift.weight)
    assert (moved(batch).mean - plain(batch).mean).abs().max() > 1e-4


def test_an_outlier_reaches_other_features_only_so_far() -> None:
    model, batch = made("paired", SPECS["features"], dtype=torch.float64).eval(), random_batch(SPECS["features"])
    where = batch.mask[..., 0].nonzero()[0]
    means = []
    for size in (1.0, 1e12):
        other = dataclasses.replace(batch, values=batch.values.double().clone())
        other.values[where[0], where[1], 0] = size
        means.append(model(other).mean)
    assert (means[1] - means[0])[..., 0].abs().max() > 1e9  # its own feature believes it
    assert (means[1] - means[0])[..., 1:].abs().max() < 5
