import json
import subprocess
import sys

import pytest

from cru.evaluation import ledger


def test_lines_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    assert ledger.read(path) == []
    for number in range(3):
        assert ledger.append(path, {"run": str(number), "score": 0.1 * number})
    assert [entry["run"] for entry in ledger.read(path)] == ["0", "1", "2"]
    assert not ledger.append(path, {"run": "1", "score": 5})
    assert len(ledger.read(path)) == 3


@pytest.mark.parametrize("before", [[], ["a"]])
def test_a_torn_line_is_left_out_and_the_next_one_is_whole(tmp_path, before):
    path = tmp_path / "ledger.jsonl"
    for run in before:
        ledger.append(path, {"run": run})
    with path.open("a") as file:
        file.write('{"run": "b", "sco')
    assert ledger.append(path, {"run": "c"})
    assert [entry["run"] for entry in ledger.read(path)] == [*before, "c"]


def test_several_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    code = (
        "import sys; from pathlib import Path; from cru.evaluation.ledger import append\n"
        "for i in range(20): append(Path(sys.argv[1]), {'run': f'{sys.argv[2]}-{i}', 'text': 'x' * 5000})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len({entry["run"] for entry in ledger.read(path)}) == 40
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r", "\n"])
def test_an_end_of_line_within_a_text_does_not_end_the_record(tmp_path, end):
    path = tmp_path / "ledger.jsonl"
    records = [{"run": "a", "text": f"one{end}two"}, {"run": "b", "text": ""}]
    assert all(ledger.append(path, record) for record in records)
    assert ledger.read(path) == records and not ledger.append(path, records[0])


def test_versions_and_commit():
    assert {"python", "torch", "numpy", "accelerate", "safetensors"} <= ledger.versions().keys()
    found = ledger.commit()
    assert found is None or len(found.removesuffix("+changes")) == 40
