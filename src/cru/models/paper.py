"""The sizes of appendix D for each dataset of the paper."""

from dataclasses import fields
from typing import Any, NamedTuple

from cru.models.base import Model, Spec
from cru.models.registry import create, entry


class Setting(NamedTuple):
    """What a dataset looks like to a model, and the sizes that the paper chose for it."""

    spec: Spec
    hidden_size: int  # M, shared by all models but the GRUs
    num_basis: int
    bandwidth: int


_PENDULUM = {"input_shape": (1, 24, 24), "time_end": 99.0}

SETTINGS = {
    "pendulum-interpolation": Setting(
        Spec(target_shape=(1, 24, 24), likelihood="bernoulli", **_PENDULUM),  # type: ignore[arg-type]
        hidden_size=30,
        num_basis=15,
        bandwidth=3,
    ),
    "pendulum-regression": Setting(
        Spec(target_shape=(2,), **_PENDULUM),  # type: ignore[arg-type]
        hidden_size=30,
        num_basis=15,
        bandwidth=3,
    ),
    "ushcn": Setting(
        Spec(input_shape=(5,), target_shape=(5,), time_scale=0.3, time_end=1460.0),
        hidden_size=10,
        num_basis=15,
        bandwidth=3,
    ),
    "physionet": Setting(
        Spec(input_shape=(37,), target_shape=(37,), time_scale=0.2, time_end=48.0),
        hidden_size=20,
        num_basis=20,
        bandwidth=10,
    ),
}
_OWN_STATE = ("gru", "gru-dt")  # 75 on every dataset


def paper_options(name: str, dataset: str) -> dict[str, Any]:
    """The options with which ``name`` has its sizes of the paper on ``dataset``.

    >>> paper_options("f-cru", "physionet")
    {'hidden_size': 20, 'num_basis': 20}
    """
    if dataset not in SETTINGS:
        raise ValueError(f"`dataset` must be one of {', '.join(SETTINGS)}, got {dataset!r}.")
    sizes = SETTINGS[dataset]._asdict()
    known = {field.name for field in fields(entry(name).model.Config)}
    if name in _OWN_STATE:
        known.remove("hidden_size")
    return {option: size for option, size in sizes.items() if option in known}


def create_paper(name: str, dataset: str, spec: Spec | None = None, **options: Any) -> Model:
    """The model as the paper had it on ``dataset``; ``options`` come on top.

    >>> create_paper("cru", "pendulum-regression").num_parameters
    14359
    """
    chosen = paper_options(name, dataset) | options
    return create(name, spec or SETTINGS[dataset].spec, **chosen)
