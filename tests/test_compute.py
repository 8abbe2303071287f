"""How many threads a computation gets, and what a forked process can do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cru import Forecaster, compute
from cru.compute import ONE_THREAD_LIMIT, threads_for
from tests.forecaster.test_stream import observations


@pytest.fixture
def chosen(monkeypatch):
    """A machine on which nobody has chosen a number of threads; tests set it and it is restored."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_small_work_takes_one_thread_and_the_number_is_restored(chosen) -> None:
    with threads_for(ONE_THREAD_LIMIT - 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4
    with threads_for(ONE_THREAD_LIMIT):
        assert torch.get_num_threads() == 4
    with pytest.raises(ValueError, match="wrong"), threads_for(1):
        raise ValueError("wrong")
    assert torch.get_num_threads() == 4


def test_who_asks_for_threads_gets_them(chosen, monkeypatch) -> None:
    chosen(3)
    with threads_for(1):
        assert torch.get_num_threads() == 3
    chosen(4)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with threads_for(1):
        assert torch.get_num_threads() == 4


def test_a_forecaster_of_a_small_table_computes_in_one_thread(chosen, monkeypatch) -> None:
    from cru.models.kalman import CRUModel

    seen, whole = set(), CRUModel.forward

    def forward(self, *given, **named):
        seen.add(torch.get_num_threads())
        return whole(self, *given, **named)

    monkeypatch.setattr(CRUModel, "forward", forward)
    forecaster = Forecaster("cru", options={"hidden_size": 4}, epochs=1, progress=False)
    forecaster.fit(observations(), id="name", time="day")
    assert seen == {1}
    forecaster.predict(None, at=[1.0])
    assert seen == {1} and torch.get_num_threads() == 4


FORK = """
import faulthandler, os, sys
import torch
from cru import Forecaster, compute
from tests.forecaster.test_stream import observations

torch.set_num_threads(2)
case, folder = sys.argv[1:]
forecaster = Forecaster.load(folder)
torch.ones(2000, 2000) @ torch.ones(2000, 2000)  # starts the threads of PyTorch
table, live = observations(), forecaster.stream()
if case != "loaded":
    live.update_many(table)
if case == "polars":
    import polars

    table = polars.DataFrame({name: column.to_list() for name, column in table.items()})
if case in ("pandas", "polars"):
    forecaster.predict(table, at=[1000.0])
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        if case == "stream":
            live.update("a0", 2000.0, {"warm": 1.0})
            print("answered", live.predict("a0", 2001.0)["warm"]["std"] > 0, flush=True)
        else:
            print("answered", len(forecaster.predict(table, at=[1000.0])) > 0, flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""
REFUSED = "a forked process cannot use tables after its parent did"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small forecaster."""
    folder = tmp_path_factory.mktemp("forked") / "model"
    forecaster = Forecaster("cru", options={"hidden_size": 4}, epochs=1, progress=False)
    forecaster.fit(observations(), id="name", time="day").save(folder)
    return folder


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize(
    ("case", "said"),
    [("loaded", "answered True"), ("stream", "answered True"), ("pandas", "answered True"), ("polars", REFUSED)],
)
def test_a_forked_process_answers_or_says_why_not(model_folder: Path, case: str, said: str) -> None:
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "PYTHONWARNINGS": "ignore"}
    environment.pop("OMP_NUM_THREADS", None)
    words = [sys.executable, "-c", FORK, case, str(model_folder)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0 and said in done.stdout, (done.stdout, done.stderr)
    assert said != REFUSED or "`spawn`" in done.stdout


def test_a_process_that_did_not_fork_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_pools_started", False)
    for _ in range(2):
        compute.check_fork()
        assert compute._pools_started and not compute._pools_lost
