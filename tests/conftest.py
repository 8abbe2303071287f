import dataclasses
import functools
import gc
import gzip
import inspect
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.data.raw_formats import dly_text

CHECKED_CALLS = 5  # of each function in each test, with the fixtures that it makes
_current_test: Any = None
_check_every_call = jaxtyping.jaxtyped


def _check_first_calls(fn: Any = None, *, typechecker: Any) -> Any:
    """Check types and shapes at the first calls of a function in each test.

    A training calls the same functions thousands of times, and the checks take as long as the training.
    """
    if fn is None:
        return functools.partial(_check_first_calls, typechecker=typechecker)
    if "<locals>" in fn.__qualname__:  # a check of a local function would be made anew at each call
        return fn
    if dataclasses.is_dataclass(fn):
        fn.__init__ = _check_first_calls(fn.__init__, typechecker=typechecker)
    if not inspect.isfunction(fn):
        return fn
    checked, test, calls = None, None, 0

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked, test, calls
        __tracebackhide__ = True
        if test != _current_test:
            test, calls = _current_test, 0
        if calls >= CHECKED_CALLS:
            return fn(*args, **kwargs)
        calls += 1
        checked = checked or _check_every_call(fn, typechecker=typechecker)  # most functions are never called
        return checked(*args, **kwargs)

    return call


jaxtyping.jaxtyped = _check_first_calls  # type: ignore[assignment]  # pytest's import hook looks it up here

# Files in memory: tests write thousands of them, and a disk needs milliseconds for each.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# One thread: the numbers do not depend on how a sum is split, and tests do not fight for the cores.
torch.set_num_threads(1)

# A shell ignores Ctrl-C for jobs in the background, and their tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "cru",
    max_examples=int(os.environ.get("CRU_EXAMPLES", "25")),
    deadline=None,
    derandomize="CRU_EXAMPLES" not in os.environ,  # asked for more, it looks further
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("cru")


REPRESENTATIVE = {  # of each kind of data, for `make quick`; "" where a test is of one kind alone
    "features": {"cru", "gru-d", "structural", "last-value"},
    "labels": {"f-cru", "ode-rnn", "paired", "mean"},
    "pictures": {"f-cru", "rkn-dt", "latent-ode", "linear"},
    "angles": {"cru", "gru-dt", "gru-ode-b", "mtand"},
    "": {"cru", "gru-dt", "structural", "mlp"},
}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the first calls of each test again."""
    global _current_test
    _current_test = item.nodeid


def pytest_collection_finish() -> None:
    """Do not search the libraries and the collected tests for garbage again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of every model that are not of a representative one."""
    from cru.models import MODELS

    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
        name = params["name"] if params and "name" in params else None
        if name in MODELS and name not in REPRESENTATIVE.get(params.get("kind", ""), REPRESENTATIVE[""]):
            item.add_marker(pytest.mark.every_model)


os.environ.pop("COLUMNS", None)  # the width of whoever runs the tests, which is not that of a pipe


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """What a test draws does not depend on the tests before it."""
    torch.manual_seed(0)


_NAMED = os.environ.get("CRU_DATA_DIR")  # before any test takes it away


@pytest.fixture
def real_data() -> Path:
    """The folder of the real raw files; tests that need it are skipped without."""
    named = _NAMED
    folder = Path(named) if named else Path(__file__).parents[1] / ".." / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real raw files are not here: set CRU_DATA_DIR")
    return folder


@pytest.fixture
def ushcn_dir(tmp_path: Path) -> Path:
    """Five stations in one gzip of lines: all report 1990 to 1994, but the last one stops in 1992."""
    folder = tmp_path / "raw" / "ushcn"
    folder.mkdir(parents=True)
    stations = [dly_text(f"USC0000000{k}", range(1990, 1995 if k < 5 else 1993), seed=k) for k in range(1, 6)]
    (folder / "some.dly.gz").write_bytes(gzip.compress("".join(stations).encode()))
    return folder.parent


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests on real data share, in all processes of pytest, so that each archive is read once."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def _pendulum_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three finished runs on a few sequences, made by the command line, with a ledger beside them."""
    from typer.testing import CliRunner

    from cru.cli import app

    root = tmp_path_factory.mktemp("pendulum")
    with pytest.MonkeyPatch.context() as patch:
        _small_pendulum(patch, root)
        patch.chdir(root)
        for preset, model in (("regression", "f-cru"), ("regression", "gru-dt"), ("interpolation", "f-cru")):
            words = ["run", f"pendulum-{preset}", "--model", model, "--ledger", "runs/ledger.jsonl"]
            words += ["--out", f"runs/{preset}-{model}", "--set", "training.epochs=2", "--set", "training.batch_size=4"]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output
    return root


@pytest.fixture
def pendulum_runs(_pendulum_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of three small runs: regression-f-cru, regression-gru-dt, interpolation-f-cru; and their ledger."""
    _small_pendulum(monkeypatch, _pendulum_runs)
    return _pendulum_runs / "runs"


def _small_pendulum(patch: pytest.MonkeyPatch, root: Path) -> None:
    from cru.data.cache import cache_dir
    from cru.data.datasets import pendulum

    cache, compiled = root / "cache", cache_dir() / "native"
    if not cache.exists():
        cache.mkdir()
        compiled.mkdir(parents=True, exist_ok=True)
        (cache / "native").symlink_to(compiled)  # the filter need not be compiled again
    patch.setattr(pendulum, "SIZES", (8, 4, 4))
    patch.setenv("CRU_CACHE_DIR", str(cache))
