"""`kill -9` at random moments: the run goes on to the very same weights and scores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cru.reporting import ledger
from cru.training import run
from cru.training.checkpoint import read_checkpoint
from tests.training.crash import SETTINGS
from tests.training.tiny import tiny_splits, without_times

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_killed_six_times_it_ends_bit_identical(tmp_path):
    words = [sys.executable, "-m", "tests.training.crash", str(tmp_path / "killed"), "6"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == "6 kills, then exit code 0\n", done.stdout + done.stderr
    whole = run(SETTINGS, tmp_path / "whole", splits=tiny_splits())
    killed = json.loads((tmp_path / "killed" / "result.json").read_text())
    assert without_times(killed) == json.loads(json.dumps(without_times(whole)))
    killed.pop("features")
    assert ledger.read(tmp_path / "ledger.jsonl") == [killed]
    for name in ("best.safetensors", "last.safetensors"):
        one, other = (read_checkpoint(tmp_path / folder / name)[0] for folder in ("whole", "killed"))
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
