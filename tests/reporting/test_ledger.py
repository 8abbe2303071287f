import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cru.reporting import ledger, paper_tables, render
from cru.reporting.ledger import compare_with_presets
from cru.reporting.report_data import collect
from cru.reporting.reproduction import missing
from cru.training import settings_for
from cru.training.experiment import data_version
from tests.cli.helpers import done, refused
from tests.forging import changes_of, one_sentence


def test_lines_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    assert ledger.read_lines(path) == []
    for number in range(3):
        assert ledger.append(path, {"run": str(number), "score": 0.1 * number})
    assert [entry["run"] for entry in ledger.read_lines(path)] == ["0", "1", "2"]
    assert not ledger.append(path, {"run": "1", "score": 5})
    assert len(ledger.read_lines(path)) == 3


def test_the_ledger_has_no_scores_by_feature(tmp_path):
    path, run = tmp_path / "ledger.jsonl", full_run()
    assert ledger.append(path, run | {"features": {"names": ["a"]}})
    assert ledger.read(path) == [run]


@pytest.mark.parametrize("before", [[], ["a"]])
def test_a_torn_line_is_left_out_and_the_next_one_is_whole(tmp_path, before):
    path = tmp_path / "ledger.jsonl"
    for run in before:
        ledger.append(path, {"run": run})
    with path.open("a") as file:
        file.write('{"run": "b", "sco')
    assert ledger.append(path, {"run": "c"})
    assert [entry["run"] for entry in ledger.read_lines(path)] == [*before, "c"]


def test_several_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    code = (
        "import sys; from pathlib import Path; from cru.reporting.ledger import append\n"
        "for i in range(20): append(Path(sys.argv[1]), {'run': f'{sys.argv[2]}-{i}', 'text': 'x' * 5000})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len({entry["run"] for entry in ledger.read_lines(path)}) == 40
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r", "\n"])
def test_an_end_of_line_within_a_text_does_not_end_the_record(tmp_path, end):
    path = tmp_path / "ledger.jsonl"
    records = [{"run": "a", "text": f"one{end}two"}, {"run": "b", "text": ""}]
    assert all(ledger.append(path, record) for record in records)
    assert ledger.read_lines(path) == records and not ledger.append(path, records[0])


def full_run(model: str = "gru", seed: int = 0) -> dict[str, Any]:
    settings = settings_for("pendulum-regression", model, seed=seed)
    test = {"scored": "all", "all": {"mse": 0.004, "nll": -5.0, "coverage90": 0.9}, "hidden": {}}
    tested = {"epoch": 1, "test": test}
    return {
        "run": f"{model}-{seed}",
        "preset": settings.preset,
        "model": model,
        "seed": seed,
        "hash": settings.hash,
        "data_version": data_version(settings),
        "scores": {"best": tested, "last": tested},
        "epochs": 100,
        "seconds_per_epoch": 3.0,
        "parameters": 7,
        "series": {"test": 2},
        "changed": [],
        "shortened": False,
        "settings": settings.as_dict(),
        "versions": {"python": "3"},
        "commit": None,
    }


def use(path: Path) -> None:
    """What `cru table`, `cru reproduce` and `cru report` do with a ledger."""
    entries = compare_with_presets(ledger.read(path))
    for epoch in ("best", "last"):
        found = paper_tables.tables(entries, epoch=epoch)
        render.markdown(
            found, paper_tables.count_left_out(entries), paper_tables.others(entries, epoch=epoch), epoch=epoch
        )
    missing(["pendulum-regression"], ["gru"], seeds=2, ledger_path=path, folder=path.parent)
    json.dumps(collect([path]), allow_nan=False)


def check_forged_lines(path: Path) -> None:
    """Change each field of a line in many ways. Every change raises an error of one sentence, or is harmless."""
    count = 0
    others = "".join(json.dumps(full_run(*which)) + "\n" for which in (("gru", 1), ("mean", 0)))
    path.write_text(others + json.dumps(full_run()) + "\n")
    use(path)
    for name, changed in changes_of(full_run()):
        path.write_text(others + json.dumps(changed) + "\n")
        count += 1
        try:
            use(path)
        except Exception as error:
            assert one_sentence(error), f"{name}: {type(error).__name__}: {error!s:.300}"
    assert count > 1000


@pytest.mark.slow
def test_every_field_of_a_forged_line_is_refused_in_one_sentence_or_harmless(tmp_path):
    """In a separate process, where the code runs as for a user, without the type checks of the tests."""
    code = "import sys; from pathlib import Path; from tests.reporting.test_ledger import check_forged_lines\n"
    code += "check_forged_lines(Path(sys.argv[1]))"
    words = [sys.executable, "-c", code, str(tmp_path / "ledger.jsonl")]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", ["scores", "seconds_per_epoch", "settings", "changed", "seed"])
def test_the_commands_refuse_a_damaged_line(tmp_path, key):
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps(full_run() | {key: "forged"}) + "\n")
    for words in (["table"], ["reproduce", "--dry-run"]):
        assert f"`{key}` in {path}, run 'gru-0', must be" in refused(*words, "--ledger", path)
    assert f"`{key}` in {path}, run 'gru-0', must be" in refused("report", path, "--out", tmp_path / "x.html")


def test_a_run_that_diverged_is_shown_as_nan(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for seed, mse in enumerate((float("nan"), float("inf"), 1e308)):
        record = full_run(seed=seed)
        record["scores"]["best"]["test"]["all"]["mse"] = mse
        ledger.append(path, record)
    (table, *_) = [one for one in paper_tables.tables(compare_with_presets(ledger.read(path))) if one.number == 2]
    assert math.isnan(table.cells["pendulum-regression"]["gru"].ours.mean)
    assert "nan" in done("table", "--ledger", path)


def test_a_ledger_of_another_program_is_left_out_of_a_report_and_named(tmp_path):
    (tmp_path / "ours").mkdir()
    ledger.append(tmp_path / "ours" / "ledger.jsonl", full_run())
    (tmp_path / "ledger.jsonl").write_text('{"a": 1}\n')
    said: list[str] = []
    assert [run["id"] for run in collect([tmp_path], say=said.append)["runs"]] == ["gru-0"]
    assert any(f"Left out: `run` in {tmp_path / 'ledger.jsonl'}" in line for line in said)
