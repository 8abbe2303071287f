"""The command line as a user meets it."""

from click.testing import Result
from typer.testing import CliRunner

from cru.cli import app

SMALL_PENDULUM = """
from cru.cli import app
from cru.data.datasets import pendulum

pendulum.SIZES = (12, 4, 4)
app(prog_name="cru")
"""
"""`cru` as a program of its own, with few pendulums."""


def cru(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> str:
    """What a call that succeeds says."""
    result = cru(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: object) -> str:
    """The one sentence on standard error that a wrong call gets."""
    result = cru(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr and result.stderr.count("\n") == 1, result.stderr
    return result.stderr
