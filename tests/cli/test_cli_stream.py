"""`cru stream`: JSON lines in, JSON lines out, and nothing that ends it but the end of its input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from cru import Forecaster
from cru.cli import app
from cru.cli.stream import StopSignals
from cru.forecaster.state_store import StateStore
from tests.forecaster.test_stream import observations

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "numbers"
    forecaster = Forecaster("cru", options={"hidden_size": 4}, epochs=1, progress=False)
    forecaster.fit(observations(), id="name", time="day").save(folder)
    return folder


def stream(folder: Path, lines: list, *options: str) -> list[dict]:
    text = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    result = CliRunner().invoke(app, ["stream", str(folder), *options], input=text)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


OBSERVATION = {"id": "a", "time": 1.5, "values": {"warm": 20.5, "wet": None}}


def test_a_prediction_for_each_observation_and_each_query(folder) -> None:
    live = Forecaster.load(folder).stream()
    live.update("a", 1.5, {"warm": 20.5})
    first, blank, asked = stream(
        folder, [OBSERVATION, b"", {"id": "b", "time": 2}, {"id": "a", "time": 3}], "--level", "50"
    )
    assert first == {"id": "a", "time": 1.5, "predictions": live.predict("a", 1.5, level=50)}
    assert blank == {"id": "b", "time": 2, "predictions": live.predict("b", 2, level=50)}
    assert asked["predictions"] == live.predict("a", 3, level=50)
    (ahead,) = stream(folder, [OBSERVATION], "--ahead", "4")
    assert ahead == {"id": "a", "time": 5.5, "predictions": live.predict("a", 5.5)}


def test_observations_are_judged_on_request(folder) -> None:
    live = Forecaster.load(folder).stream()
    wild = {"id": "a", "time": 3.0, "values": {"warm": 900.0}}
    first, second, asked = stream(folder, [OBSERVATION, wild, {"id": "a", "time": 4.0}], "--significance", "0.01")
    assert first["anomalies"] == live.anomalies("a", 1.5, OBSERVATION["values"], update=True)
    assert second["anomalies"] == live.anomalies("a", 3.0, wild["values"]) and second["anomalies"]["warm"]["anomaly"]
    assert "anomalies" not in asked and second["predictions"].keys() == {"warm", "wet"}
    result = CliRunner().invoke(app, ["stream", str(folder), "--significance", "2"], input=b"")
    assert result.exit_code == 2 and "--significance must be a probability" in result.output


def test_a_stream_starts_from_a_table(folder, tmp_path) -> None:
    observations().to_csv(tmp_path / "past.csv", index=False)
    live, state = Forecaster.load(folder).stream(), tmp_path / "state"
    live.update_many(observations())
    asked = {"id": "a0", "time": 1000.0}
    options = ("--start", str(tmp_path / "past.csv"), "--state", str(state))
    for _ in range(2):  # at the second time the state is there, and the table is not read again
        (found,) = stream(folder, [asked], *options)
        assert found["predictions"] == live.predict("a0", 1000.0)


def test_a_model_without_ids_needs_none(tmp_path) -> None:
    table = observations(1, 40).drop(columns="name")
    forecaster = Forecaster("cru", options={"hidden_size": 4}, epochs=1, progress=False).fit(table, time="day")
    forecaster.save(tmp_path / "single")
    (first, wrong) = stream(tmp_path / "single", [{"time": 1.0, "values": {"warm": 20.0}}, {"id": "a", "time": 2.0}])
    assert first["id"] is None and "warm" in first["predictions"]
    assert "must be None, because the model was fitted to one series" in wrong["error"]


def test_a_wrong_line_gets_an_error_and_the_stream_continues(folder) -> None:
    bad = {
        b"{": "a line must be one JSON object.",
        b"[1, 2]": 'a line must be an object with "id", "time" and, for an observation, "values".',
        b'{"id": "a", "time": 1, "value": {}}': 'a line must be an object with "id", "time"',
        b'{"id": "a", "time": 1, "values": [3]}': '"values" must be an object from names to numbers.',
        b'{"id": "a", "time": "soon", "values": {}}': "`time` must be numbers",
        b'{"id": "a", "time": 2, "values": {"warmth": 1}}': "`values` must be variables of the training table",
        b'{"id": "a", "time": 2, "values": {"warm": "x"}}': "`values` must be numbers near those of the training table",
        b'{"id": "a", "time": 2, "values": {"warm": [1]}}': "`values` must be numbers near those of the training table",
        b'{"id": "a", "time": 1, "values": {"warm": 1}}': "`time` must not lie before the last observation of 'a'",
        b"\xff": "a line must be one JSON object.",
        b"[" * 100_000: "a line must be one JSON object.",
        b'{"id": "a", "time": 2, "values": {"warm": '
        + b"9" * 400
        + b"}}": "`values` must be numbers near those of the training table",
        b'{"id": "a", "time": ' + b"9" * 400 + b"}": "`time` must be finite",
        b'{"id": "a", "time": ' + b"9" * 9000 + b"}": "a line must be one JSON object.",
    }
    answers = stream(folder, [OBSERVATION, *bad, OBSERVATION | {"time": 9.0}])
    assert [answer.get("line") for answer in answers] == [None, *range(2, len(bad) + 2), None]
    for answer, said in zip(answers[1:-1], bad.values(), strict=True):
        assert answer["error"].startswith(said) and len(answer["error"]) < 200, answer
    assert answers[9]["error"].endswith("Sort the observations, or give --late drop.")
    dropped = stream(folder, [OBSERVATION, OBSERVATION | {"time": 1.0}], "--late", "drop")[1]
    assert dropped == {"id": "a", "time": 1.0, "dropped": "late"}


def test_the_state_is_kept_and_taken_up_again(folder, tmp_path) -> None:
    state = ["--state", str(tmp_path / "ward.safetensors")]
    later = OBSERVATION | {"time": 2.0}
    whole = stream(folder, [OBSERVATION, later])
    assert stream(folder, [OBSERVATION], *state) == whole[:1]
    assert stream(folder, [later], *state) == whole[1:]


def test_dates(tmp_path) -> None:
    table = observations()
    table["day"] = pd.Timestamp("2024-03-01") + pd.to_timedelta(table["day"], unit="D").dt.round("s")
    forecaster = Forecaster("cru", options={"hidden_size": 4}, epochs=1, progress=False)
    forecaster.fit(table, id="name", time="day").save(tmp_path / "dates")
    (answer,) = stream(tmp_path / "dates", [OBSERVATION | {"time": "2024-04-01T06:00"}], "--ahead", "6h")
    assert answer["time"] == "2024-04-01T12:00:00"


def test_wrong_options_are_one_sentence(folder, tmp_path) -> None:
    for options, said in (
        (["--ahead", "6h"], "--ahead must be a number"),
        (["--level", "0.9"], "--level must be per cent"),
    ):
        result = CliRunner().invoke(app, ["stream", str(folder), *options], input=json.dumps(OBSERVATION))
        assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.output
    result = CliRunner().invoke(app, ["stream", str(tmp_path / "nowhere")])
    assert result.exit_code == 2 and "there is no model folder" in result.stderr


@pytest.fixture
def process(folder, tmp_path):
    """The command itself, with pipes at both ends."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under `nohup`
    words = [sys.executable, "-m", "cru.cli", "stream", str(folder), "--state", str(tmp_path / "kept")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, **pipes) as running:
        signal.signal(signal.SIGHUP, before)
        running.stdin.write((json.dumps(OBSERVATION) + "\n").encode())
        running.stdin.flush()
        assert json.loads(running.stdout.readline())["time"] == 1.5  # at once, not when the input ends
        yield running
        running.kill()


@pytest.mark.parametrize(  # one handler for all signals: a second one is sent once
    ("stop", "times"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 1)]
)
def test_ctrl_c_or_a_stopped_service_keeps_the_state(process, tmp_path, stop, times: int) -> None:
    time.sleep(1)  # until it waits for more input
    for _ in range(times):
        process.send_signal(stop)
    assert process.wait(30) == 130
    said = process.stderr.read().decode()
    assert "interrupted; the state is stored in" in said and "Traceback" not in said
    assert (tmp_path / "kept").exists()


def test_a_second_stream_on_one_state_is_refused(process, folder, tmp_path) -> None:
    (tmp_path / "other name").symlink_to(tmp_path / "kept")
    for name in ("kept", "other name"):
        result = CliRunner().invoke(app, ["stream", str(folder), "--state", str(tmp_path / name)], input="")
        assert result.exit_code == 2 and result.stderr.count("\n") == 1, result.output
        assert "--state must be used by one process at a time" in result.stderr
    process.stdin.close()
    assert process.wait(30) == 0
    stream(folder, [{"id": "a", "time": 2.0}], "--state", str(tmp_path / "kept"))  # the lock ends with the process


@pytest.mark.parametrize(("closed", "name"), [("<&-", "input"), (">&-", "output")])
def test_a_closed_standard_input_or_output_is_one_sentence(folder, closed: str, name: str) -> None:
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "cru.cli", "stream", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert done.stderr.decode().startswith(f"cru: standard {name} must be open") and done.stderr.count(b"\n") == 1


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_pipe_ends_it_in_silence(process, tmp_path) -> None:
    process.stdout.close()  # as `head` does
    process.stdin.write(2 * (json.dumps(OBSERVATION | {"time": 3.0}) + "\n").encode())
    process.stdin.close()
    assert process.wait(30) == 0
    assert process.stderr.read() == b""
    assert (tmp_path / "kept").exists()


def test_a_signal_within_a_line_waits_for_its_response(folder, monkeypatch, tmp_path) -> None:
    whole = StateStore.put

    def interrupted(rows: StateStore, *given) -> None:
        signal.raise_signal(signal.SIGTERM)
        whole(rows, *given)

    monkeypatch.setattr(StateStore, "put", interrupted)
    text = "".join(json.dumps(OBSERVATION | {"time": float(t)}) + "\n" for t in (1, 2, 3))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result = CliRunner().invoke(app, ["stream", str(folder), "--state", str(tmp_path / "kept")], input=text)
    assert result.exit_code == 130 and len(result.stdout.splitlines()) == 1  # answered, and no further
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    monkeypatch.undo()
    live, again = (Forecaster.load(folder).stream(state=state) for state in (None, tmp_path / "kept"))
    live.update("a", 1.0, OBSERVATION["values"])
    assert again.predict("a", 4.0) == live.predict("a", 4.0)
