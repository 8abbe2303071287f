import dataclasses
import json

import numpy as np
import pytest
import torch

from cru import native
from cru.data.series import Batches
from cru.errors import RunError
from cru.evaluation import evaluate
from cru.models import Prediction
from cru.reporting.ledger import compare_with_presets
from cru.training import load_model, run, settings_for
from cru.training.callbacks import Callback
from cru.training.checkpoint import read_checkpoint
from cru.training.experiment import make_model
from cru.training.loop import Loop, Progress, clip_gradient
from cru.training.run import RunCheckpointer
from tests.helpers import calls_of
from tests.training.tiny import tiny_series, tiny_settings, tiny_splits, without_times


@pytest.fixture(scope="module")
def splits():
    return tiny_splits()


class Stop(Callback):
    """Ends a run after so many epochs, as Ctrl-C would."""

    def __init__(self, after):
        self.after = after

    def on_epoch(self, record, *, better):
        if record["epoch"] == self.after:
            raise KeyboardInterrupt


def weights(path):
    return read_checkpoint(path)[0]


@pytest.mark.parametrize("model", ["f-cru", "cru", "rkn-dt", "gru-dt"])
def test_training_lowers_the_loss_and_leaves_everything_in_the_folder(model, splits, tmp_path):
    record = run(tiny_settings(model, epochs=4), tmp_path / "r", splits=splits)
    lines = [json.loads(line) for line in (tmp_path / "r" / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4] and lines[-1]["loss"] < lines[0]["loss"]
    assert {"best.safetensors", "last.safetensors", "result.json", "settings.json"} <= {
        p.name for p in (tmp_path / "r").iterdir()
    }
    assert all(line["gradient"] > 0 for line in lines)
    features = record.pop("features")
    assert features["names"] == ("a", "b") and len(features["all"]["mse"]) == len(features["hidden"]["crps"]) == 2
    assert record["parameters"] > 0 and record["series"] == {"train": 16, "validation": 4, "test": 4}
    assert record["changed"] == ["preset", "splits"] and record["versions"]["torch"] and record["hash"]
    last = lines[-1]["validation"]
    assert record["scores"]["last"]["validation"]["all"] == last["all"]
    assert {"mse", "mae", "nll", "crps", "coverage50", "coverage90"} < last["hidden"].keys()


def test_the_best_epoch_is_the_one_with_the_best_validation(splits, tmp_path):
    record = run(tiny_settings(epochs=6, learning_rate=0.3), tmp_path / "r", splits=splits)
    lines = [json.loads(line) for line in (tmp_path / "r" / "log.jsonl").read_text().splitlines()]
    scores = [line["validation"]["all"]["mse"] for line in lines]
    best = min(scores)
    assert record["scores"]["best"]["epoch"] == scores.index(best) + 1
    assert record["scores"]["best"]["validation"]["all"]["mse"] == best
    model = load_model(tmp_path / "r")
    assert evaluate(model, splits.test, batch_size=5)["mse"] == record["scores"]["best"]["test"]["all"]["mse"]


def change_scores(monkeypatch, change):
    """Have each validation's scores changed before the loop sees them."""
    from cru.training import loop

    def changed(*arguments, **options):
        scores = evaluate(*arguments, **options)
        change(scores.regions["all"])
        return scores

    monkeypatch.setattr(loop, "evaluate", changed)


def test_what_is_no_score_of_the_task_cannot_choose_the_epoch(splits, tmp_path):
    task = splits.validation.task._replace(likelihood="bernoulli")
    pictures = splits._replace(validation=dataclasses.replace(splits.validation, task=task))
    with pytest.raises(
        ValueError, match=r"`training.monitor` must be a score of this task, got 'crps'. There are mse,"
    ):
        run(tiny_settings(monitor="crps"), tmp_path, splits=pictures)


def test_a_validation_that_is_not_a_number_is_never_the_best(splits, tmp_path, monkeypatch):
    values = iter([float("nan"), 1.0, 2.0])
    change_scores(monkeypatch, lambda scores: scores.update(mse=next(values)))
    assert run(tiny_settings(epochs=3), tmp_path, splits=splits)["scores"]["best"]["epoch"] == 2


def test_a_run_counts_as_the_preset_s_only_while_the_preset_says_so():
    entry = {"changed": [], "settings": settings_for("ushcn-interpolation", "cru").as_dict()}
    assert compare_with_presets([entry])[0]["changed"] == []
    assert compare_with_presets([entry | {"changed": ["splits"]}])[0]["changed"] == ["splits"]  # series of one's own
    then = settings_for("ushcn-interpolation", "cru", changes=["model.variance_map=square", "training.epochs=20"])
    now = compare_with_presets([entry | {"settings": then.as_dict()}])[0]
    assert now["changed"] == ["model.options.variance_map", "training.epochs"] and now["shortened"]
    assert not now["older_settings"], "a shortened run is none of the paper's"
    for change, older in (("model.variance_map=square", True), ("data.seed=1", False), ("training.epochs=20", False)):
        then = settings_for("ushcn-interpolation", "cru", changes=[change]).as_dict()
        assert compare_with_presets([entry | {"settings": then}])[0]["older_settings"] == older
        recorded = entry | {"settings": then, "changed": ["model.options.variance_map"]}
        assert not compare_with_presets([recorded])[0]["older_settings"], "changed on the command line"
    assert compare_with_presets([entry | {"settings": {"from": "another version"}}])[0]["changed"] == ["settings"]


def test_a_gradient_whose_square_overflows_is_clipped_like_any_other():
    model = torch.nn.Linear(3, 1)
    model.weight.grad, model.bias.grad = torch.tensor([[3e25, 0.0, 0.0]]), torch.tensor([-4e25])
    assert clip_gradient(model, 10.0) == pytest.approx(5e25)
    assert model.weight.grad.tolist() == [[pytest.approx(6.0), 0.0, 0.0]] and model.bias.grad.item() == pytest.approx(
        -8
    )
    assert clip_gradient(model, 20.0) == pytest.approx(10.0)  # and stays as it is below the limit
    assert model.bias.grad.item() == pytest.approx(-8)


def test_one_seed_fixes_everything(splits, tmp_path):
    first, again, other = (
        run(tiny_settings(seed=seed), tmp_path / name, splits=splits) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert without_times(first) == without_times(again)
    assert first["scores"] != other["scores"]


def test_what_the_caller_draws_does_not_matter(splits, tmp_path):
    torch.manual_seed(5)
    first = run(tiny_settings(), tmp_path / "a", splits=splits)
    torch.manual_seed(6)
    assert without_times(run(tiny_settings(), tmp_path / "b", splits=splits)) == without_times(first)


@pytest.mark.parametrize("model", ["f-cru", "gru"])
def test_resuming_after_an_interruption_is_bit_identical(model, splits, tmp_path):
    settings = tiny_settings(model, epochs=5, schedule="cosine", optimizer="adamw", weight_decay=0.01)
    whole = run(settings, tmp_path / "whole", splits=splits)
    for after in (1, 2, 4):
        with pytest.raises(KeyboardInterrupt):
            run(settings, tmp_path / "cut", splits=splits, resume=True, callback=Stop(after))
    resumed = run(settings, tmp_path / "cut", splits=splits, resume=True)
    assert without_times(resumed) == without_times(whole)
    for name in ("best.safetensors", "last.safetensors"):
        one, other = weights(tmp_path / "whole" / name), weights(tmp_path / "cut" / name)
        assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    assert [without_times(json.loads(a)) for a in logs[0]] == [without_times(json.loads(b)) for b in logs[1]]


def test_a_finished_run_is_not_run_again(splits, tmp_path):
    settings = tiny_settings()
    first = run(settings, tmp_path / "r", splits=splits)
    for _ in range(2):
        again = run(settings, tmp_path / "r", splits=splits, resume=True, callback=Stop(1))
        assert again == json.loads(json.dumps(first))


def test_a_folder_with_another_run_is_refused(splits, tmp_path):
    run(tiny_settings(), tmp_path / "r", splits=splits)
    with pytest.raises(ValueError, match="already holds a run"):
        run(tiny_settings(), tmp_path / "r", splits=splits)
    with pytest.raises(ValueError, match=r"they differ in training\.epochs"):
        run(tiny_settings(epochs=9), tmp_path / "r", splits=splits, resume=True)
    (tmp_path / "r" / "result.json").unlink()
    content = (tmp_path / "r" / "last.safetensors").read_bytes()
    (tmp_path / "r" / "last.safetensors").write_bytes(content[:200])
    with pytest.raises(ValueError, match=r"last\.safetensors is truncated"):
        run(tiny_settings(), tmp_path / "r", splits=splits, resume=True)


def test_early_stopping(splits, tmp_path):
    settings = tiny_settings(epochs=50, learning_rate=1.0, patience=2)
    record = run(settings, tmp_path / "r", splits=splits)
    assert record["epochs"] == record["scores"]["best"]["epoch"] + 2 < 50


def test_a_naive_baseline_needs_no_epochs(splits, tmp_path):
    record = run(tiny_settings("series-mean", options={}), tmp_path / "r", splits=splits)
    assert record["epochs"] == 0 and record["parameters"] == 0
    assert 0 < record["scores"]["best"]["test"]["all"]["mse"] < 1
    model = load_model(tmp_path / "r")
    assert evaluate(model, splits.test)["mse"] == pytest.approx(record["scores"]["best"]["test"]["all"]["mse"])


def test_a_model_that_is_not_causal_is_refused_for_a_causal_task():
    import cru

    causal = cru.data.one_step_ahead(tiny_series().train)
    with pytest.raises(ValueError, match="'linear' uses later inputs"):
        make_model(tiny_settings("linear", options={}), causal)


class Poisoned:
    """Makes the loss NaN in chosen calls, or always."""

    def __init__(self, model, when):
        self.loss, self.when, self.calls = model.loss, when, 0

    def __call__(self, batch, *, progress=1.0):
        self.calls += 1
        loss = self.loss(batch, progress=progress)
        return loss * float("nan") if self.when(self.calls) else loss


def loop_with(when, splits, folder, **training):
    settings = tiny_settings(**training)
    model = make_model(settings, splits.train)
    model.loss = Poisoned(model, when)
    return Loop(
        settings.training, model, *splits[:2], seed=settings.seed, checkpointer=RunCheckpointer(folder, settings)
    )


def test_a_single_nan_is_skipped_and_counted(splits, tmp_path):
    loop = loop_with(lambda call: call in (2, 6), splits, tmp_path)
    progress = loop.run()
    assert (progress.epoch, progress.skipped, progress.skipped_in_a_row) == (3, 2, 0)
    assert all(bool(p.isfinite().all()) for p in loop.model.parameters())
    assert [record["skipped"] for record in progress.history] == [1, 2, 2]


def test_repeated_nonfinite_steps_stop_the_run_and_name_the_place(splits, tmp_path):
    loop = loop_with(lambda call: call > 5, splits, tmp_path, max_skipped=3)
    with pytest.raises(RunError) as error:
        loop.run()
    message = str(error.value)
    assert "not finite in 3 consecutive steps" in message and "epoch 2, batch 4" in message
    assert "series s" in message and "the gradient of output" in message
    assert read_checkpoint(tmp_path / "last.safetensors")[1]["progress"]["epoch"] == 1


@pytest.mark.parametrize("worse", [lambda p: (0 * p).sqrt(), lambda p: 1e25 * (p - p.detach())], ids=["nan", "huge"])
def test_a_gradient_that_adam_cannot_square_is_skipped_too(worse, splits, tmp_path):
    """The loss is finite; an infinity among Adam's squares would never leave it again."""
    loop = loop_with(lambda call: False, splits, tmp_path, max_skipped=2)
    original, weights = loop.model.loss, next(loop.model.parameters())
    loop.model.loss = lambda batch, *, progress=1.0: original(batch, progress=progress) + worse(weights).sum()
    before = {name: p.detach().clone() for name, p in loop.model.named_parameters()}
    with pytest.raises(RunError, match="2 consecutive steps"):
        loop.run()
    assert all(torch.equal(p, before[name]) for name, p in loop.model.named_parameters())
    assert not loop.optimizer.state


def test_a_prediction_is_what_the_scores_are_of(splits):
    settings = tiny_settings("mean", options={})
    model = make_model(settings, splits.train)
    assert isinstance(model(splits.train.batch([0])), Prediction)


def test_a_limit_of_time_ends_a_run_after_the_epoch_under_way(tmp_path):
    record = run(tiny_settings(epochs=50, minutes=1e-6), tmp_path, splits=tiny_splits())
    assert record["epochs"] == 1
    rates = [json.loads(line)["learning_rate"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rates == [0.01]


@pytest.mark.parametrize(("schedule", "last"), [("constant", 3), ("cosine", 10)])
def test_patience_waits_until_a_cosine_schedule_has_fallen(schedule, last):
    settings = tiny_settings(epochs=20, patience=2, schedule=schedule).training
    ends = [epoch for epoch in range(1, 21) if Progress(epoch=epoch, best_epoch=1).done(settings)]
    assert ends[0] == last


def test_the_schedule_follows_the_time_limit_if_that_is_further():
    settings = tiny_settings(epochs=50, minutes=1.0, schedule="cosine")
    loop = Loop(settings.training, make_model(settings, tiny_splits().train), *tiny_splits()[:2])
    rates = []
    for spent in (0.0, 30.0, 59.0):
        loop.progress.history = [{"processor_seconds": spent}]
        loop._step(np.arange(4), 0, 0)
        rates.append(loop.optimizer.param_groups[0]["lr"])
    assert (
        rates[0] == pytest.approx(0.01)
        and rates[1] == pytest.approx(0.0055, rel=0.02)
        and rates[2] == pytest.approx(0.001, rel=0.02)
    )


def test_training_series_can_be_renewed_each_epoch():
    settings, splits, seen = tiny_settings(epochs=3), tiny_splits(), []

    def renew(epoch):
        seen.append(epoch)
        return tiny_splits(hidden=0.1 * epoch).train

    loop = Loop(settings.training, make_model(settings, splits.train), *splits[:2], renew=renew)
    loop.run()
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("optimizer", ["adam", "adamax"])
def test_the_last_epoch_is_kept_on_request(splits, tmp_path, optimizer):
    record = run(tiny_settings(keep="last", optimizer=optimizer, learning_rate=1.0), tmp_path / "a", splits=splits)
    assert record["scores"]["best"] == record["scores"]["last"] and record["scores"]["best"]["epoch"] == 3
    best, last = (read_checkpoint(tmp_path / "a" / f"{name}.safetensors")[0] for name in ("best", "last"))
    assert all(torch.equal(tensor, last[name]) for name, tensor in best.items())


def test_without_a_checkpointer_the_best_weights_stay_in_memory(splits, tmp_path):
    """They are those that a run with the same settings writes to its folder."""
    settings = tiny_settings(epochs=6, learning_rate=0.3)
    record = run(settings, tmp_path / "r", splits=splits)
    assert record["scores"]["best"]["epoch"] < 6, "the last epoch must not be the best"
    model = make_model(settings, splits.train)
    loop = Loop(settings.training, model, *splits[:2], seed=settings.seed)
    model.prepare(Batches(splits.train, settings.training.batch_size, model.dtype, loop.engine.device))
    assert loop.run().best_epoch == record["scores"]["best"]["epoch"]
    kept, written = loop.checkpointer.best_weights(), weights(tmp_path / "r" / "best.safetensors")
    assert kept.keys() == {name.removeprefix("model.") for name in written}
    assert all(torch.equal(tensor, written[f"model.{name}"]) for name, tensor in kept.items())


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_a_training_step_passes_through_few_files(splits):
    settings = tiny_settings("cru")
    model = make_model(settings, splits.train)
    loop = Loop(settings.training, model, splits.train, splits.validation)
    chosen = np.arange(5)
    loop._step(chosen, 0, 0)  # the first step loads the compiled filter
    found = calls_of(lambda: loop._step(chosen, 0, 0))
    assert len(found) <= 15, sorted(found)
