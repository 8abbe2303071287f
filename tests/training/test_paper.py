"""Models with the sizes of the paper."""

import pytest

from cru.data import DATASETS
from cru.models import MODELS
from cru.training.paper import PAPER_DATASETS, create_paper, paper_options, paper_spec

COUNTS = {
    ("cru", "pendulum-regression"): 14_359,
    ("cru", "ushcn"): 15_135,
    ("cru", "physionet"): 28_654,
    ("f-cru", "pendulum-regression"): 10_100,
    ("f-cru", "ushcn"): 14_000,
    ("f-cru", "physionet"): 21_500,
}


@pytest.mark.parametrize(("name", "dataset"), COUNTS)
def test_counts(name: str, dataset: str) -> None:
    """The paper gives rounded counts for the f-CRU."""
    assert create_paper(name, dataset).num_parameters == pytest.approx(COUNTS[name, dataset], rel=0.005)


def test_the_specs_are_those_of_the_datasets() -> None:
    sizes = {
        "pendulum-interpolation": (576, 576),
        "pendulum-regression": (576, 2),
        "ushcn": (5, 5),
        "physionet": (37, 37),
    }
    ends = {"pendulum-interpolation": 99.0, "pendulum-regression": 99.0, "ushcn": 1460.0, "physionet": 48.0}
    assert set(PAPER_DATASETS) <= set(DATASETS)
    for name in PAPER_DATASETS:
        spec = paper_spec(name)
        assert (spec.input_size, spec.target_size) == sizes[name] and spec.time_end == ends[name]
        assert spec.time_scale == DATASETS[name].time_scale
    with pytest.raises(ValueError, match=r"`dataset` must be one of pendulum-interpolation, .*, got 'mnist'"):
        paper_options("cru", "mnist")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_predicts_every_dataset_that_it_can(name: str) -> None:
    for dataset in ("ushcn", "physionet", *(["pendulum-interpolation"] if name != "corrected" else [])):
        model = create_paper(name, dataset)
        assert model.spec == paper_spec(dataset)
        chosen = {option: getattr(model.config, option) for option in paper_options(name, dataset)}
        assert chosen == paper_options(name, dataset)
