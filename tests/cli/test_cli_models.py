"""`cru models`, run as a user runs it."""

from typer.testing import CliRunner

from cru.cli import app
from cru.models import MODELS


def run(*arguments: str):
    return CliRunner().invoke(app, ["models", *arguments], env={"COLUMNS": "140"})


def test_the_table_has_every_model_and_the_paper_sizes() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split() for line in result.output.splitlines() if line.strip()}
    assert set(MODELS) <= set(rows)
    assert rows["cru"][-4:] == ["24,698", "14,359", "15,135", "28,654"]
    assert rows["f-cru"][-3:] == ["10,129", "14,005", "21,454"]
    assert rows["last-value"][-4:] == ["0", "-", "0", "0"]


def test_options_of_one_model() -> None:
    result = run("cru")
    assert result.exit_code == 0, result.output
    assert "num_basis" in result.output
    assert "This model has no options" in run("mean").output


def test_an_unknown_model_is_one_sentence() -> None:
    result = run("crru")
    assert result.exit_code == 2
    assert "did you mean 'cru'?" in result.output
