"""Two processes with gloo on the CPU: the curve of one, and a clear end when one of them dies."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cru.training import run
from cru.training.checkpoint import read_checkpoint
from tests.cli.helpers import SMALL_PENDULUM
from tests.training.parallel import settings
from tests.training.tiny import tiny_splits

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def curve(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("model", ["cru", "gru-dt"])
def test_two_processes_follow_the_curve_of_one(model, tmp_path):
    words = [*TORCHRUN, "-m", "tests.training.parallel", str(tmp_path / "two"), model]
    done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    run(settings(model), tmp_path / "one", splits=tiny_splits(23))
    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert len(one) == len(two) == 4
    for a, b in zip(one, two, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
        assert b["validation"]["all"] == pytest.approx(a["validation"]["all"], abs=1e-5)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    tests = [result["scores"]["best"]["test"]["all"] for result in results]
    assert tests[0] == pytest.approx(tests[1], abs=1e-5)
    assert [result["processes"] for result in results] == [1, 2]


def test_a_killed_worker_ends_the_run_with_a_sentence_and_a_usable_checkpoint(tmp_path):
    (tmp_path / "small.py").write_text(SMALL_PENDULUM)
    run_words = ["run", "pendulum-regression", "--model", "gru-dt", "--out", "r", "--set", "training.batch_size=4"]
    words = [*TORCHRUN, "small.py", *run_words]
    environment = ENVIRONMENT | {"CRU_CACHE_DIR": str(tmp_path / "cache")}
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        wait_for(lambda: (tmp_path / "r" / "last.safetensors").exists(), process)
        victim = workers(process.pid)[-1]
        os.kill(victim, signal.SIGKILL)
        assert process.wait(timeout=120) != 0
    finally:
        process.kill()
    said = (tmp_path / "output").read_text()
    assert re.search(r"cru: (another process of this run has ended|interrupted)", said), said
    assert "Continue with --resume" in said
    _, header = read_checkpoint(tmp_path / "r" / "last.safetensors")
    epochs = header["progress"]["epoch"] + 1
    assert 1 < epochs < 100
    words = [sys.executable, "small.py", *run_words, "--resume"]
    again = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert again.stdout is not None
        lines = [again.stdout.readline() for _ in range(2)]
    finally:
        again.kill()
        again.communicate()
    assert lines[1].startswith(f"epoch {epochs}/100"), lines


def wait_for(condition, process) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "the run did not get going"
        time.sleep(0.05)


def workers(parent: int) -> list[int]:
    """The processes that a torchrun started."""
    import psutil

    return [child.pid for child in psutil.Process(parent).children() if "small.py" in " ".join(child.cmdline())]
