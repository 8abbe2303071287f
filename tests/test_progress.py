"""The progress bar: what a terminal, a notebook and a pipe see."""

import io
import sys
import types

import pytest

from cru import progress
from cru.progress import ProgressBar, is_live, track


class Terminal(io.StringIO):
    """A terminal that remembers everything."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = types.SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


def test_a_pipe_sees_nothing(clock) -> None:
    pipe = io.StringIO()
    with ProgressBar("impute", 4, stream=pipe, keep=True) as bar:
        for number in range(4):
            clock.seconds += 10
            bar.update(number + 1, "text")
    assert pipe.getvalue() == "" and not is_live(pipe)


def test_a_terminal_sees_the_share_the_note_and_the_time_left(clock) -> None:
    terminal = Terminal()
    with ProgressBar("impute", 4, stream=terminal, keep=True) as bar:
        clock.seconds += 10
        bar.update(1, "first")
        assert terminal.getvalue() == f"\rimpute  {'━' * 4}{'─' * 10}  first  left 0:00:30"
        clock.seconds += 10
        bar.update(4, "all")
    shown = terminal.getvalue().split("\r")[-1]
    assert shown == f"impute  {'━' * 14}  all  left 0:00:00\n"


def test_short_work_shows_nothing_and_a_bar_is_erased(clock) -> None:
    terminal = Terminal()
    with ProgressBar("short", 2, stream=terminal) as bar:
        clock.seconds += progress.WAIT / 2
        bar.update(1)
    assert terminal.getvalue() == ""
    with ProgressBar("long", 2, stream=terminal) as bar:
        clock.seconds += 2
        bar.update(1)
        width = len(terminal.getvalue()) - 1
    assert terminal.getvalue().endswith("\r" + " " * width + "\r")


def test_it_fits_into_the_width_of_the_terminal(clock, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    with ProgressBar("title", 2, stream=terminal) as bar:
        clock.seconds += 2
        bar.update(1, "note " * 20)
        assert len(terminal.getvalue()) == 1 + 39


def test_a_title_cannot_control_the_terminal(clock) -> None:
    terminal = Terminal()
    with ProgressBar("a\x1b[2Jb", stream=terminal, wait=0.0) as bar:
        bar.update(0, "c\x1b[2Jd")
    assert "\x1b" not in terminal.getvalue()


def test_a_terminal_without_unicode_gets_plain_characters(clock) -> None:
    terminal = Terminal()
    monkey = type("Latin", (Terminal,), {"encoding": "latin-1"})()
    for stream, full in ((terminal, "━"), (monkey, "#")):
        with ProgressBar("x", 2, stream=stream, wait=0.0) as bar:
            bar.update(1)
        assert full * 7 in stream.getvalue()


def test_a_notebook_sees_it_on_standard_output(clock, monkeypatch, capsys) -> None:
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not sys.stdout.isatty()
    with ProgressBar("fit", 2, wait=0.0) as bar:
        bar.update(1, "half")
    shown = capsys.readouterr()
    assert "fit  " in shown.out and "half" in shown.out and shown.err == ""


def test_plain_ipython_is_no_notebook(monkeypatch) -> None:
    shell = types.SimpleNamespace()  # a terminal: it has no kernel
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not progress.in_notebook()


def test_track_shows_how_much_of_an_iterator_is_done(clock, monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def work():
        for number in range(4):
            clock.seconds += 10
            yield number

    assert list(track(work(), "backtest", 4)) == [0, 1, 2, 3]
    assert f"backtest  {'━' * 4}{'─' * 10}  1/4  left 0:00:30" in terminal.getvalue()
    assert list(track(work(), "unknown length")) == [0, 1, 2, 3] and "unknown length  1" in terminal.getvalue()


def test_track_counts(clock) -> None:
    seen = []
    for item in track("abc", "letters"):
        seen.append(item)
    assert seen == ["a", "b", "c"]
