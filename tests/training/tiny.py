"""A problem that trains in a blink: noisy sines at irregular times, some values missing."""

import numpy as np

import cru
from cru.data.random import generator
from cru.training import DataSettings, ModelSettings, RunSettings, TrainingSettings


def tiny_splits(count: int = 24, *, hidden: float = 0.3):
    return tiny_series(count).map(lambda part: cru.data.interpolation(part, hidden=hidden, seed=3))


def tiny_series(count: int = 24):
    rng = generator(7, "test")
    lengths = rng.integers(6, 12, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    times = np.concatenate([np.sort(rng.random(n)) * 10 for n in lengths])
    values = np.stack([np.sin(times), np.cos(times)], 1) + 0.1 * rng.standard_normal((len(times), 2))
    values[rng.random(values.shape) < 0.2] = np.nan
    series = cru.data.make_series(times, values, offsets, ids=[f"s{i}" for i in range(count)], names=["a", "b"])
    return cru.data.split(series, seed=0)


def tiny_settings(model: str = "f-cru", *, seed: int = 0, options: dict | None = None, **training) -> RunSettings:
    sizes = {"hidden_size": 4} | ({"num_basis": 2} if model in ("cru", "f-cru", "rkn", "rkn-dt") else {})
    return RunSettings(
        data=DataSettings(dataset="ushcn", task="interpolation", time_scale=1.0),
        model=ModelSettings(name=model, options=options if options is not None else sizes),
        training=TrainingSettings(**{"epochs": 3, "batch_size": 5, "learning_rate": 0.01} | training),
        seed=seed,
    )


def without_times(record):
    """A ledger entry or log line without what may differ from call to call."""
    if isinstance(record, dict):
        volatile = ("seconds", "validation_seconds", "processor_seconds", "seconds_per_epoch", "run", "finished")
        return {key: without_times(value) for key, value in record.items() if key not in volatile}
    return [without_times(entry) for entry in record] if isinstance(record, list) else record
