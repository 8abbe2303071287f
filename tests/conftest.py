import os

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
