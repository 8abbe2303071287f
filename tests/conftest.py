import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# One thread: the numbers do not depend on how a sum is split, and tests do not fight for the cores.
torch.set_num_threads(1)

settings.register_profile(
    "cru",
    max_examples=int(os.environ.get("CRU_EXAMPLES", "25")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("cru")

_NAMED = os.environ.get("CRU_DATA_DIR")  # before any test takes it away


@pytest.fixture
def real_data() -> Path:
    """The folder of the real raw files; tests that need it are skipped without."""
    named = _NAMED
    folder = Path(named) if named else Path(__file__).parents[1] / ".." / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real raw files are not here: set CRU_DATA_DIR")
    return folder


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests on real data share, so that each archive is read once."""
    return tmp_path_factory.mktemp("cache")
