import dataclasses
import itertools
import json
import subprocess
import sys

import pytest

from cru.reporting.paper_tables import paper_presets
from cru.training import DataSettings, RunSettings, models_of, presets, settings_for
from cru.training.experiment import load_splits
from cru.training.loop import learning_rate
from cru.training.presets import parse_change, read_preset
from cru.training.settings import TrainingSettings, differences
from tests.training.tiny import tiny_settings

PAPER = [
    "pendulum-interpolation",
    "pendulum-regression",
    "ushcn-interpolation",
    "ushcn-extrapolation",
    "physionet-interpolation",
    "physionet-extrapolation",
    "ushcn-one-step",
    "physionet-one-step",
    "ushcn-sparseness",
]


def test_there_is_a_preset_for_every_experiment():
    assert set(PAPER) <= set(presets())


@pytest.mark.parametrize("preset", PAPER)
def test_presets_hold_the_paper_s_settings(preset):
    from cru.models import NAIVE

    dataset = read_preset(preset)["data"]["dataset"]
    for model in models_of(preset):
        if model in NAIVE or model.startswith("paired"):  # which are not the paper's
            continue
        settings = settings_for(preset, model, seed=3)
        training, options = settings.training, settings.model.options
        assert (settings.seed, settings.data.seed, settings.preset) == (3, 0, preset)
        assert (training.epochs, training.optimizer) == (100, "adamax" if model == "latent-ode" else "adam")
        batches = {"mtand": 32, "latent-ode": 50}  # their authors' own
        assert training.batch_size == batches.get(model, 100 if dataset == "physionet" else 50)
        clipped = model in ("cru", "f-cru", "rkn", "rkn-dt", "gru", "gru-dt") and not dataset.startswith("pendulum")
        assert training.clip == (1.0 if clipped else None)
        if model in ("cru", "f-cru", "rkn", "rkn-dt"):
            assert (options["hidden_size"], options["num_basis"], options.get("bandwidth", 0)) == SIZES[dataset][
                : 2 if model == "f-cru" else 3
            ] + ((0,) if model == "f-cru" else ())
            assert training.learning_rate == (5e-3 if model == "f-cru" else 1e-3)
            assert training.schedule == "constant"
        if model in ("gru-d", "ode-rnn", "latent-ode"):
            assert (training.learning_rate, training.schedule, training.decay) == (0.01, "exponential", 0.999)
        else:
            assert training.learning_rate == (5e-3 if model == "f-cru" else 1e-3)
        assert training.weight_decay == (1e-4 if model == "gru-ode-b" else 0.0)
        size = 75 if model in ("gru", "gru-dt") else SIZES[dataset][0]
        assert options["hidden_size"] == size
        assert {key: options[key] for key in BASELINES.get(model, {})} == BASELINES.get(model, {})


SIZES = {  # M, K and the bandwidth of appendix D
    "pendulum-interpolation": (30, 15, 3),
    "pendulum-regression": (30, 15, 3),
    "ushcn": (10, 15, 3),
    "physionet": (20, 20, 10),
}
BASELINES = {  # appendix D and protocol.md
    "mtand": {"units": 10, "reference_points": 64},
    "gru-d": {"units": 100},
    "ode-rnn": {"units": 100},
    "latent-ode": {"recognition_size": 40, "units": 50, "layers": 5},
    "gru-ode-b": {"prep_units": 10, "obs_units": 25, "dropout": 0.2},
}
TASKS = {
    "ushcn-interpolation": ("ushcn", "interpolation", {"hidden": 0.0}),
    "ushcn-extrapolation": ("ushcn", "extrapolation", {"fraction": 0.5}),
    "physionet-interpolation": ("physionet", "interpolation", {"hidden": 0.0}),
    "physionet-extrapolation": ("physionet", "extrapolation", {"time": 24.0}),
    "pendulum-interpolation": ("pendulum-interpolation", "interpolation", {"hidden": 0.5, "keep_before": 5.0}),
    "pendulum-regression": ("pendulum-regression", "regression", {"target": "sin_cos"}),
}


@pytest.mark.parametrize("preset", TASKS)
def test_presets_hold_the_paper_s_tasks(preset):
    data = settings_for(preset, "cru").data
    assert (data.dataset, data.task, data.task_options) == TASKS[preset]
    assert data.options == ({"published": True} if data.dataset == "physionet" else {})
    assert (data.sparseness, data.train, data.validation, data.test) == (None,) * 4


@pytest.mark.parametrize("value", ["half", "2020-01-01"])  # which TOML takes for a date
def test_an_option_of_a_task_of_the_wrong_kind_is_one_sentence(value):
    settings = settings_for("pendulum-interpolation", "cru", changes=[f"data.task_options.hidden={value}"])
    with pytest.raises(ValueError, match=f"`data.task_options.hidden` must be a number, got '{value}'"):
        load_splits(settings)


def test_settings_survive_json():
    settings = settings_for("ushcn-sparseness", "cru", seed=2)
    again = RunSettings.from_dict(json.loads(json.dumps(settings.as_dict())))
    assert again == settings and again.hash == settings.hash


def test_hash_changes_with_every_setting_and_only_then():
    base = tiny_settings()
    assert base.hash == tiny_settings().hash
    others = [tiny_settings(seed=1), tiny_settings(epochs=4), tiny_settings("cru"), tiny_settings(clip=1.0)]
    assert len({base.hash, *(other.hash for other in others)}) == 5
    assert (
        base.hash
        == dataclasses.replace(base, training=TrainingSettings(epochs=3, batch_size=5, learning_rate=0.01)).hash
    )


def test_changes_are_toml_values_or_bare_words():
    assert parse_change("training.epochs=5") == (["training", "epochs"], 5)
    assert parse_change("data.options.scaling=train") == (["data", "options", "scaling"], "train")
    assert parse_change("a.b={ c = [1, 2] }") == (["a", "b"], {"c": [1, 2]})
    settings = settings_for("pendulum-regression", "cru", changes=["training.epochs=5", "model.hidden_size=20"])
    assert differences(settings, settings_for("pendulum-regression", "cru")) == [
        "model.options.hidden_size",
        "training.epochs",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.epoch=5", "no setting `training.epoch`; did you mean 'epochs'"),
        ("trianing.epochs=5", "did you mean 'training'"),
        ("training.epochs=0", "`training.epochs` must be at least 1, got 0"),
        ("training.epochs=many", "`training.epochs` must be an integer, got 'many'"),
        ("training.epochs=true", "must be an integer, got True"),
        ("training.schedule=cosin", "'constant', 'exponential', 'cosine', 'step', got 'cosin'"),
        ("training.learning_rate=-1", "`training.learning_rate` must be positive"),
        ("training.learning_rate=inf", "`training.learning_rate` must be positive and finite"),
        ("training.clip=text", 'must be a number or "none"'),
        ("data.train=0", "`data.train` must be at least 1"),
        ("model.hidensize=3", "no setting `model.hidensize` for 'cru'; did you mean 'hidden_size'"),
        ("training", "must have the form training.epochs=5"),
        ("training=5", "`training` is a section"),
        ("training.epochs.x=5", "no setting `training.epochs.x`: `epochs` is a value"),
    ],
)
def test_wrong_changes_say_what_is_wrong(change, message):
    with pytest.raises(ValueError) as error:
        settings_for("ushcn-interpolation", "cru", changes=[change])
    assert message in str(error.value)


def test_unknown_names_get_the_closest():
    with pytest.raises(ValueError, match="Did you mean 'pendulum-regression'"):
        settings_for("pendulum-regresion", "cru")
    with pytest.raises(ValueError, match="did you mean 'f-cru'"):
        settings_for("pendulum-regression", "fcru")
    with pytest.raises(ValueError, match="has no settings for the model 'climatology'"):
        settings_for("pendulum-regression", "climatology")


def test_none_is_written_as_a_word():
    assert settings_for("ushcn-interpolation", "cru", changes=["training.clip=none"]).training.clip is None


def test_a_preset_of_one_s_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[data]\ndataset = "ushcn"\ntask = "interpolation"\n[models.cru]\ntraining = { epochs = 7 }\n')
    settings = settings_for(str(path), "cru")
    assert (settings.preset, settings.training.epochs) == ("mine", 7)
    path.write_text("[trainin]\nepochs = 3\n[models.cru]\n")
    with pytest.raises(ValueError, match="must not have `trainin`; did you mean 'training'"):
        settings_for(str(path), "cru")
    path.write_text("[models.cru]\ntrainig = { epochs = 3 }\n")
    with pytest.raises(ValueError, match=r"must not have `models\.cru\.trainig`; did you mean 'training'"):
        settings_for(str(path), "cru")
    for wrong, where in (
        ('models = "cru"', "models"),
        ("[models]\ncru = 5", "models.cru"),
        ("training = 5", "training"),
    ):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=f"`{where}` must be a section"):
            settings_for(str(path), "cru")
    path.write_text("[data\n")
    with pytest.raises(ValueError, match="is not valid TOML"):
        settings_for(str(path), "cru")
    path.write_text('[data]\ntask = "interpolation"\n[models.cru]\n')
    with pytest.raises(ValueError, match=r"`data.dataset` must be given"):
        settings_for(str(path), "cru")


def test_schedules():
    constant = TrainingSettings(learning_rate=1.0)
    assert {learning_rate(constant, step, 100) for step in range(100)} == {1.0}
    falling = TrainingSettings(learning_rate=1.0, schedule="exponential", decay=0.9)
    assert learning_rate(falling, 2, 100) == pytest.approx(0.81) and learning_rate(falling, 99, 100) == 0.1
    cosine = TrainingSettings(learning_rate=1.0, schedule="cosine", floor=0.01, warmup=4)
    rates = [learning_rate(cosine, step, 100) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]) and rates[-1] == pytest.approx(0.01)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))


def test_options_of_a_model_of_the_wrong_kind_are_one_sentence():
    """In a process of its own, without the type checks of the tests."""
    words = [
        sys.executable,
        "-m",
        "cru.cli",
        "run",
        "pendulum-regression",
        "--model",
        "mtand",
        "--set",
        "model.full=abc",
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "cru: `model.full` must be True or False or None, got 'abc'.\n")


def test_the_seed_of_the_data_is_apart_from_that_of_the_run():
    fixed = settings_for("ushcn-interpolation", "cru", seed=2)
    other = settings_for("ushcn-interpolation", "cru", seed=2, changes=["data.seed=2"])
    assert (fixed.data.seed, other.data.seed) == (0, 2) and fixed.hash != other.hash
    own = RunSettings(data=DataSettings(dataset="ushcn", task="interpolation"), model=fixed.model, seed=2)
    assert own.data.seed == 2, "without one it is the seed of the run"
    named = dataclasses.replace(own, data=dataclasses.replace(own.data, seed=2))
    assert own.hash == named.hash, "which hashes of earlier runs had left out"


@pytest.mark.parametrize("preset", paper_presets())
def test_published_presets_follow_the_others(preset):
    published = f"{preset}-published"
    assert published in presets() and not any(name.startswith("paired") for name in models_of(published))
    for model in ("cru", "gru-dt", "mtand"):
        ours, theirs = settings_for(preset, model), settings_for(published, model)
        options = dict(ours.data.options) | {"joined": True} | ({"same_days": True} if "ushcn" in preset else {})
        assert theirs.data == dataclasses.replace(ours.data, options=options) and theirs.model == ours.model
        size = 50 if "physionet" in preset and model != "mtand" else ours.training.batch_size
        assert theirs.training == dataclasses.replace(ours.training, keep="last", batch_size=size)


def test_the_rate_falls_once():
    settings = TrainingSettings(schedule="step", decay=1 / 3, decay_epoch=2, epochs=4, learning_rate=0.3)
    rates = [learning_rate(settings, step, 40) for step in (0, 19, 20, 39)]
    assert rates == pytest.approx([0.3, 0.3, 0.1, 0.1])
