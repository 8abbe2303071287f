"""One error type for wrong input: every boundary makes the sentence with its own names."""

import pickle

import numpy as np
import pytest

import cru
from cru.cli import app
from cru.cli.error_handling import option_names
from cru.data.datasets import ushcn
from cru.errors import InputError, full_message, literal
from cru.training.experiment import load_splits
from tests.cli.helpers import refused

REPEATED = InputError(
    rule="have one observation for each time",
    found="2 repeated times, the first in series a",
    hint="Give {duplicates='mean'} to average them.",
    time=3.0,
    otherwise="Average them first.",
)


def test_a_boundary_gives_the_arguments_its_own_names() -> None:
    start = "the table must have one observation for each time, got 2 repeated times, the first in series a at time 3. "
    assert str(REPEATED) == start + "Give `duplicates='mean'` to average them."
    said = REPEATED.render({"duplicates": "--duplicates", "duplicates=": "--duplicates "})
    assert said == start + "Give --duplicates mean to average them."
    flag = InputError("out", "be new", hint="Give {resume=True}.").render({"out": "--out", "resume": "--resume"})
    assert flag == "--out must be new. Give --resume."
    assert str(REPEATED.without_arguments()) == start + "Average them first."
    assert "at time 2024-01-04" in str(REPEATED.replace(time="2024-01-04"))


def test_it_survives_a_pickle() -> None:
    error = REPEATED.replace()
    error.add_note("It is in table.csv.")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, InputError) and isinstance(again, ValueError) and vars(again) == vars(error)
    assert full_message(again.replace(time=None)).endswith("to average them. It is in table.csv.")
    assert not hasattr(REPEATED, "__notes__")


def test_data_of_the_user_is_never_taken_for_an_argument() -> None:
    error = InputError("id", f"be one of {literal('{horizon}')}", "{horizon}", literal("there is {horizon}."))
    sentence = error.render({"horizon": "--horizon", "id": "--id"})
    assert sentence == "--id must be one of {horizon}, got {horizon}. There is {horizon}."


def test_every_option_of_a_command_has_its_name() -> None:
    from typer.main import get_command

    commands = get_command(app).commands
    fit, stream = option_names(commands["fit"]), option_names(commands["stream"])
    assert fit["id"] == "--id" and fit["duplicates="] == "--duplicates " and "table" not in fit
    assert fit["base"] == "--base" and "base=" not in fit
    assert stream["late"] == "--late" and "duplicates" not in stream
    assert option_names(commands["data"])["seed"] == "--seed"


def test_an_infinite_cell_is_an_error_about_a_column(tmp_path, monkeypatch) -> None:
    """The user of `cru fit` who never gave --values does not read about it."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"a,2024-01-{day:02d},{'inf' if day == 4 else day}\n" for day in range(1, 20))
    (tmp_path / "table.csv").write_text("who,date,tmax\n" + rows)
    said = refused("fit", "table.csv", "--id", "who", "--time", "date", "--out", "model")
    assert "column 'tmax' must be finite" in said and "in series a at time 2024-01-04" in said
    assert "--values" not in said and "`values`" not in said


def test_a_setting_is_named_as_the_caller_gave_it() -> None:
    with pytest.raises(InputError, match="`epochs` must be at least 1, got 0"):
        cru.training.TrainingSettings(epochs=0)
    with pytest.raises(InputError, match=r"`training\.epochs` must be at least 1, got 0"):
        cru.training.settings_for("pendulum-regression", "gru", changes=["training.epochs=0"])
    with pytest.raises(InputError, match=r"`hidden_size` must be an integer of at least 1, got 0\.$"):
        cru.models.create("gru", cru.models.Spec(input_shape=(2,), target_shape=(2,)), hidden_size=0)
    with pytest.raises(InputError, match=r"`model\.hidden_size` must be an integer of at least 1, got 0\.$"):
        cru.training.settings_for("pendulum-regression", "gru", changes=["model.hidden_size=0"])


def test_an_option_of_the_data_or_the_task_is_named_as_a_setting(monkeypatch) -> None:
    series = cru.data.from_arrays({"X": np.ones((5, 3, 5))})
    monkeypatch.setattr(ushcn, "prepare", lambda **_: series)
    monkeypatch.setattr(ushcn, "thin", lambda part, **_: part)
    for change, said in (
        ("data.task_options.hidden=2.0", "`data.task_options.hidden` must be a share from 0 up to but not including 1"),
        ("data.dataset=ushcnn", "`data.dataset` must be a known dataset, got 'ushcnn'"),
        ("data.sparseness=0.9", "`data.sparseness` must be from 0 to 1/4, got 0.9"),
    ):
        settings = cru.training.settings_for("ushcn-interpolation", "gru", changes=[change])
        with pytest.raises(InputError, match=said):
            load_splits(settings)
