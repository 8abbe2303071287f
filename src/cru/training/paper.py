"""Models with the sizes of the paper. The presets define the sizes, and the datasets define the rest of the spec."""

from dataclasses import fields
from typing import Any

from cru.data.datasets import DATASETS, pendulum, physionet, ushcn
from cru.errors import InputError
from cru.models import Model, Spec, create
from cru.models.registry import entry
from cru.training.presets import read_preset

_IMAGES: dict[str, Any] = {"input_shape": pendulum.IMAGE_SHAPE, "time_end": pendulum.FRAMES - 1.0}
_STATIONS, _PATIENTS = (len(ushcn.ELEMENTS),), (len(physionet.UNITS),)
_SPECS: dict[str, dict[str, Any]] = {
    "pendulum-interpolation": _IMAGES | {"target_shape": pendulum.IMAGE_SHAPE, "likelihood": "bernoulli"},
    "pendulum-regression": _IMAGES | {"target_shape": (2,)},
    "ushcn": {"input_shape": _STATIONS, "target_shape": _STATIONS, "time_end": ushcn.DAYS - 1.0},
    "physionet": {"input_shape": _PATIENTS, "target_shape": _PATIENTS, "time_end": physionet.HOURS},
}
_SIZES = ("hidden_size", "num_basis", "bandwidth")
_FIXED_STATE = ("gru", "gru-dt")  # their hidden size is 75 on every dataset
PAPER_DATASETS = tuple(_SPECS)


def paper_spec(dataset: str) -> Spec:
    """Return the `Spec` of a dataset of the paper.

    >>> from cru.training.paper import paper_spec
    >>> paper_spec("ushcn").time_scale
    0.3
    """
    if dataset not in _SPECS:
        raise InputError("dataset", f"be one of {', '.join(_SPECS)}", repr(dataset))
    return Spec(time_scale=DATASETS[dataset].time_scale, **_SPECS[dataset])


def paper_options(name: str, dataset: str) -> dict[str, Any]:
    """Return the options that give a model the sizes of the paper on a dataset.

    >>> from cru.training import paper_options
    >>> paper_options("f-cru", "physionet")
    {'hidden_size': 20, 'num_basis': 20}
    """
    paper_spec(dataset)
    preset = read_preset(dataset if dataset.startswith("pendulum") else f"{dataset}-interpolation")
    sizes = preset["models"]["cru"]["model"]
    known = {field.name for field in fields(entry(name).model.Config)} - (
        {"hidden_size"} if name in _FIXED_STATE else set()
    )
    return {option: sizes[option] for option in _SIZES if option in known}


def create_paper(name: str, dataset: str, spec: Spec | None = None, **options: Any) -> Model:
    """Make a model with the sizes of the paper on a dataset.

    Args:
        name: the name of the model.
        dataset: the dataset.
        spec: the spec of the data. None: that of the dataset.
        options: options that replace the sizes.

    >>> from cru.training import create_paper
    >>> create_paper("cru", "pendulum-regression").num_parameters
    14359
    """
    return create(name, spec or paper_spec(dataset), **(paper_options(name, dataset) | options))
