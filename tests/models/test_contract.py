"""Every registered model, through one battery."""

import json
import math
from dataclasses import fields
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cru.models import MODELS, NAIVE, Model, Spec, create
from tests.models.helpers import SPECS, changed, dropped, made, padded, random_batch, reordered, steps_of

STRUCTURAL = ("structural", "structural-filter")  # `prepare` fits them
SAMPLED = ("latent-ode", "mtand", "corrected")  # their losses draw samples, also in evaluation mode
LEARNED = [name for name in MODELS if name not in (*NAIVE, *STRUCTURAL)]
INPUT_RULES = [name for name in (*NAIVE, *STRUCTURAL) if name != "mean"]
KINDS = [(n, k) for n in MODELS for k in SPECS if not (n in INPUT_RULES and k in ("labels", "angles"))]
KINDS = [(n, k) for n, k in KINDS if n != "corrected" or k == "features"]
CLOSE = {"rtol": 2e-4, "atol": 2e-5}
every_kind = pytest.mark.parametrize(("name", "kind"), KINDS)
every_model = pytest.mark.parametrize("name", MODELS)
every_learned = pytest.mark.parametrize("name", LEARNED)


def predict(model: Model, batch, **options) -> tuple[torch.Tensor, ...]:
    """Mean, and variance where there is one, in evaluation mode."""
    model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        return tuple(part for part in model(batch, **options)[:2] if part is not None)


def same(found, expected, where=None, **tolerance) -> None:
    for a, b in zip(found, expected, strict=True):
        a, b = (a, b) if where is None else (a[where], b[where])
        torch.testing.assert_close(a, b, **(tolerance or CLOSE))


@every_kind
def test_shapes(name: str, kind: str) -> None:
    spec = SPECS[kind]
    batch = random_batch(spec)
    prediction = made(name, spec)(batch)
    assert prediction.mean.shape == batch.targets.shape
    assert torch.isfinite(prediction.mean).all()
    if spec.likelihood == "bernoulli":
        assert prediction.var is None
        assert prediction.mean.min() >= 0
        assert prediction.mean.max() <= 1
    else:
        assert prediction.var.shape == batch.targets.shape
        assert torch.isfinite(prediction.var).all()
        assert (prediction.var >= 0).all()
    skewed = {"center", "skew"} if name == "corrected" else set()  # a skewed distribution always has both
    assert set(prediction.intermediates) == skewed
    assert made(name, spec).loss(batch).shape == ()


@every_kind
def test_padding_and_the_order_of_a_batch_do_not_matter(name: str, kind: str) -> None:
    batch = random_batch(SPECS[kind])
    model = made(name, SPECS[kind])
    expected = predict(model, batch)
    same([p[:, :6] for p in predict(model, padded(batch, 3))], expected, batch.valid)
    order = [2, 0, 1]
    same(predict(model, reordered(batch, order)), [p[order] for p in expected])
    single = steps_of(reordered(batch, [1]), int(batch.lengths[1]))
    same(predict(model, single), [p[1:2, : int(batch.lengths[1])] for p in expected])


@every_kind
def test_what_is_hidden_has_no_influence(name: str, kind: str) -> None:
    spec = SPECS[kind]
    batch, model = random_batch(spec), made(name, spec)
    garbage = changed(
        batch,
        values=torch.where(batch.mask, batch.values, 123.0),
        targets=torch.where(batch.target_mask, batch.targets, 0.7),
    )
    same(predict(model, garbage), predict(model, batch), rtol=0, atol=0)
    same(predict(model, changed(batch, targets=1 - batch.targets)), predict(model, batch), rtol=0, atol=0)
    model.train()
    losses = []
    for given in (batch, garbage):
        torch.manual_seed(3)
        losses.append(model.loss(given).item())
    assert losses[0] == losses[1]


@every_kind
def test_a_prediction_does_not_need_targets(name: str, kind: str) -> None:
    batch, model = random_batch(SPECS[kind]), made(name, SPECS[kind])
    none = torch.zeros(*batch.times.shape, 0)
    without = changed(batch, targets=none, target_mask=none.bool(), hidden=none.bool())
    same(predict(model, without), predict(model, batch), rtol=0, atol=0)


@every_kind
def test_targets_of_another_shape_are_refused(name: str, kind: str) -> None:
    batch, model = random_batch(SPECS[kind]), made(name, SPECS[kind])
    other = random_batch(Spec(input_shape=SPECS[kind].input_shape, target_shape=(1,)))
    wrong = changed(batch, targets=other.targets, target_mask=other.target_mask, hidden=other.hidden)
    for use in (model.loss, lambda batch: model.prepare([batch])) if name in NAIVE else (model.loss,):
        with pytest.raises(ValueError, match=r"`batch` must hold targets of the shape .* got \(1,\)"):
            use(wrong)


@every_kind
def test_later_inputs_have_no_influence_on_earlier_predictions(name: str, kind: str) -> None:
    model = made(name, SPECS[kind])
    if not model.causal:
        pytest.skip("looks at the whole series, and says so")
    batch = random_batch(SPECS[kind], steps=7)
    expected = predict(model, batch)
    same(predict(model, steps_of(batch, 4)), [p[:, :4] for p in expected])
    later = batch.values.clone()
    later[:, 4:] = 1 - later[:, 4:]
    same([p[:, :4] for p in predict(model, changed(batch, values=later))], [p[:, :4] for p in expected])


def pieces(batch, *cuts: int):
    """The same batch in parts, cut before the given steps."""
    return [steps_of(dropped(batch, a), b - a) for a, b in pairwise([0, *cuts, 6])]


def tensors(state) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else [leaf for part in state for leaf in tensors(part)]


@every_kind
def test_streaming_gives_the_same_predictions(name: str, kind: str) -> None:
    model, batch = made(name, SPECS[kind]), random_batch(SPECS[kind], observed=0.4)
    check_streaming(model, batch)


def test_streaming_of_a_modulated_stack() -> None:
    torch.manual_seed(0)
    model = create("paired", SPECS["features"], modulated=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    check_streaming(model, random_batch(SPECS["features"], observed=0.3))


def check_streaming(model: Model, batch) -> None:
    if not model.streams:
        with pytest.raises(ValueError, match=f"{type(model).__name__} does not support streaming: it "):
            model.advance(batch)
        return
    expected = predict(model, batch)
    for cuts in ([3], [1, 2, 3, 4, 5]):
        state, sizes, found = None, set(), []
        for part in pieces(batch, *cuts):
            found.append(predict(model, part, state=state))
            with torch.no_grad():
                state = model.advance(part, state)
            sizes.add(tuple(tuple(leaf.shape) for leaf in tensors(state)))
        joined = [torch.cat(field, 1) for field in zip(*found, strict=True)]
        known = batch.valid.clone()
        if not model.causal:  # earlier parts do not know the later ones; the last part knows all
            known[:, : cuts[-1]] = False
        same(joined, expected, known, rtol=1e-5, atol=2e-6)
        assert len(sizes) == 1  # constant memory
        assert all(len(leaf) == 3 for leaf in tensors(state))


@every_kind
def test_a_batch_may_have_no_series_but_not_no_times(name: str, kind: str) -> None:
    model, batch = made(name, SPECS[kind]), random_batch(SPECS[kind])
    nobody = reordered(batch, [])
    assert model(nobody).mean.shape == nobody.targets.shape
    assert torch.isfinite(model.loss(nobody))
    if name not in NAIVE:
        with pytest.raises(ValueError, match="at least one time point"):
            model(steps_of(batch, 0))


@every_kind
def test_autocast(name: str, kind: str) -> None:
    model, batch = made(name, SPECS[kind]), random_batch(SPECS[kind])
    expected = predict(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = predict(model, batch)
        loss = model.loss(batch)
    close = 4 * torch.finfo(torch.bfloat16).eps
    same([part.to(torch.float32) for part in found], expected, rtol=close, atol=close)
    assert torch.isfinite(loss)
    if loss.requires_grad:
        loss.backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


@every_kind
def test_a_stream_does_not_start_without_a_time(name: str, kind: str) -> None:
    model, batch = made(name, SPECS[kind]), random_batch(SPECS[kind], observed=0.4)
    empty = changed(batch, lengths=torch.tensor([0, *batch.lengths[1:]]))
    with pytest.raises(ValueError, match="must have a time point for every series, got none for series 0"):
        model.advance(empty)


def test_the_recurrent_models_stream() -> None:
    able = {name for name in MODELS if made(name, SPECS["features"]).streams}
    assert {"cru", "f-cru", "rkn", "rkn-dt", "gru", "gru-dt", "ode-rnn", "gru-ode-b", "paired"} <= able
    both_sides = {name for name in MODELS if not made(name, SPECS["features"]).causal}
    assert able & both_sides == {"structural", "corrected"}  # which keep what they need of the past


@every_model
def test_later_unobserved_times_have_no_influence_on_earlier_predictions(name: str) -> None:
    model = made(name, SPECS["features"])
    batch = random_batch(SPECS["features"], steps=7)
    mask = batch.mask.clone()
    mask[:, 4:] = False
    unseen = changed(batch, mask=mask, values=torch.where(mask, batch.values, 0.0))
    same([p[:, :4] for p in predict(model, unseen)], predict(model, steps_of(unseen, 4)))


@every_kind
def test_float32_and_float64(name: str, kind: str) -> None:
    spec = SPECS[kind]
    batch = random_batch(spec)
    single, double = made(name, spec), made(name, spec, dtype=torch.float64)
    double.load_state_dict(single.state_dict())
    low, high = predict(single, batch), predict(double, batch.to(dtype=torch.float64))
    assert all(p.dtype == torch.float32 for p in low)
    assert all(p.dtype == torch.float64 for p in high)
    same([p.double() for p in low], high, rtol=5e-3, atol=5e-4)
    same(predict(double, batch), high, rtol=1e-5, atol=1e-6)  # the module's type rules, not the batch's
    losses = []
    for model, given in ((single, batch), (single, batch), (double, batch.to(dtype=torch.float64))):
        torch.manual_seed(len(losses))
        losses.append(float(model.loss(given).detach()))
    sampled = name in SAMPLED and (name, kind) not in (("mtand", "labels"), ("mtand", "angles"))  # an encoder only
    assert (losses[0] != losses[1]) == sampled
    if not sampled:  # a loss that draws samples draws others in another type
        assert losses[0] == pytest.approx(losses[2], rel=5e-3, abs=5e-4)
    assert math.isfinite(losses[2])


def extreme_batches(spec: Spec) -> dict[str, object]:
    batch = random_batch(spec)
    jumps = torch.tensor([0.0, 0.0, 1e-6, 1.0, 100.0, 1e4]).double().cumsum(0).expand(3, 6)
    nothing = changed(batch, values=torch.zeros_like(batch.values), mask=torch.zeros_like(batch.mask))
    return {
        "gaps from 0 to 1e4": changed(batch, times=jumps, lengths=torch.full((3,), 6)),
        "everything missing": nothing,
        "everything missing, nothing to predict": changed(nothing, target_mask=torch.zeros_like(batch.target_mask)),
        "one time point": steps_of(batch, 1),
        "no time point": steps_of(changed(nothing, lengths=torch.zeros(3, dtype=torch.long)), 1),
        "all times equal": changed(batch, times=torch.full_like(batch.times, 4.0)),
    }


@every_kind
def test_never_a_nan(name: str, kind: str) -> None:
    for case, batch in extreme_batches(SPECS[kind]).items():
        model = made(name, SPECS[kind])
        assert all(torch.isfinite(part).all() for part in predict(model, batch)), case
        model.train()
        loss = model.loss(batch)
        assert torch.isfinite(loss), case
        if name in LEARNED:
            loss.backward()
            for parameter_name, parameter in model.named_parameters():
                assert parameter.grad is None or torch.isfinite(parameter.grad).all(), (case, parameter_name)


@every_kind
def test_saved_and_loaded_bit_for_bit(name: str, kind: str, tmp_path) -> None:
    spec = SPECS[kind]
    model, batch = made(name, spec), random_batch(spec)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "spec.json").write_text(json.dumps(spec.as_dict()))
    again = create(name, Spec.from_dict(json.loads((tmp_path / "spec.json").read_text())))
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    same(predict(again, batch), predict(model, batch), rtol=0, atol=0)


@every_kind
def test_the_same_seed_gives_the_same_numbers(name: str, kind: str) -> None:
    spec = SPECS[kind]
    batch = random_batch(spec)
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        model = create(name, spec)
        model.prepare([batch])
        loss = model.loss(batch)
        if loss.requires_grad:
            loss.backward()
        runs.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


@every_learned
def test_every_parameter_is_trained(name: str) -> None:
    model, batch = made(name, SPECS["features"]), random_batch(SPECS["features"], steps=10)
    model.train()
    model.loss(batch, progress=0.5).backward()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    idle = [n for n, p in trained if p.grad is None or not p.grad.any()]
    assert idle == []


def test_names_and_options_are_checked() -> None:
    spec = SPECS["features"]
    with pytest.raises(ValueError, match="did you mean 'f-cru'"):
        create("fcru", spec)
    with pytest.raises(ValueError, match="'f-cru' has no option 'bandwidth'"):
        create("f-cru", spec, bandwidth=3)
    with pytest.raises(ValueError, match="did you mean 'hidden_size'"):
        create("cru", spec, hiden_size=8)
    with pytest.raises(ValueError, match=r"values of the shape \(3,\)"):
        create("cru", spec)(random_batch(Spec(input_shape=(4,), target_shape=(4,))))


COUNTS = {"hidden_size", "num_basis", "units", "layers", "steps", "recognition_size", "samples", "dense_units", "bins"}
COUNTS |= {"reference_points", "embedding", "num_heads", "obs_units", "prep_units", "pairs", "width", "copies"}
COUNTS |= {"most_parts", "members"}
AMOUNTS = {"rtol": 0.0, "atol": -1.0, "noise": 0.0, "longest": 0.0, "annealing": 1.0, "dropout": 1.0, "mixing": -1e-4}
AMOUNTS |= {"beta": -0.1, "jitter": -0.1, "period": 0.0, "last": -0.1, "series": 1.1, "bandwidth": -1, "coupling": -0.1}
AMOUNTS |= {"target_noise": 0.0, "inputs": -1, "later_inputs": 1}


@every_model
def test_options_that_make_no_sense_are_refused(name: str) -> None:
    for field in fields(MODELS[name].model.Config):
        for value in (0, -3) if field.name in COUNTS else (AMOUNTS[field.name],) if field.name in AMOUNTS else ():
            with pytest.raises(ValueError, match=f"`{field.name}` .*must "):
                create(name, SPECS["features"], **{field.name: value})


@every_model
def test_every_number_among_the_options_is_checked(name: str) -> None:
    numbers = {field.name for field in fields(MODELS[name].model.Config) if type(field.default) in (int, float)}
    assert numbers <= COUNTS | AMOUNTS.keys()


@pytest.mark.parametrize("name", ["cru", "gru", "gru-d", "ode-rnn", "latent-ode", "gru-ode-b"])
def test_an_encoder_without_layers_is_not_taken_for_none(name: str) -> None:
    same_again = nn.Sequential()
    assert create(name, SPECS["features"], encoder=same_again).encoder is same_again


@pytest.mark.parametrize("name", INPUT_RULES)
def test_a_rule_on_inputs_refuses_a_regression(name: str) -> None:
    with pytest.raises(ValueError, match="predicts the inputs themselves"):
        create(name, SPECS["labels"])


def sines(count: int, seed: int):
    """Noisy sines of one frequency and any phase, 30 observations each at random times, a third of them withheld."""
    spec = Spec(input_shape=(1,), target_shape=(1,), time_start=0.0, time_end=10.0)
    batch = random_batch(spec, count, 30, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    times = 10 * torch.rand(count, 30, generator=generator, dtype=torch.float64).sort(1).values
    phase = 2 * torch.pi * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    clean = torch.sin(2 * torch.pi * times / 8 + phase)[..., None].float()
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=generator)
    mask = torch.rand(clean.shape, generator=generator) < 2 / 3
    everything = torch.ones_like(mask)
    lengths = torch.full((count,), 30)
    fields = {"times": times, "values": torch.where(mask, noisy, 0.0), "mask": mask, "hidden": ~mask}
    return changed(batch, **fields, targets=noisy, target_mask=everything, lengths=lengths)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LEARNED if name != "mlp"])  # which has no memory
def test_learns(name: str) -> None:
    """At most half the error of the mean on the withheld observations of unseen series, in at most 1000 steps."""
    test, batches = sines(64, 99), [sines(32, seed) for seed in range(20)]
    torch.manual_seed(0)
    options = {"reference_points": 16, "embedding": 32} if name == "mtand" else {}  # a quarter of its defaults
    model = create(name, Spec(input_shape=(1,), target_shape=(1,), time_start=0.0, time_end=10.0), **options)
    model.prepare(batches)
    # At this rate Adam is not stable for Latent ODE, whose authors take Adamax.
    optimizer = torch.optim.Adamax if name == "latent-ode" else torch.optim.Adam
    optimiser = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.01)
    goal = 0.5 * test.targets[test.hidden].var().item()
    step, error = 0, float("inf")
    while error > goal and step < 1000:
        model.train()
        for _ in range(10):
            optimiser.zero_grad()
            model.loss(batches[step % 20], progress=min(1.0, step / 200)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
        error = (predict(model, test)[0] - test.targets)[test.hidden].square().mean().item()
    print(f"{name}: {error:.3f} of {2 * goal:.3f} after {step} steps")
    assert error <= goal
