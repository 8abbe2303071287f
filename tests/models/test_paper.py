"""Parameter counts: within 10 % of what the paper's sizes imply."""

import pytest

import cru
from cru.models import MODELS, SETTINGS, create_paper, paper_options

COUNTS = {
    ("cru", "pendulum-regression"): 14_400,
    ("cru", "ushcn"): 15_100,
    ("cru", "physionet"): 28_700,
    ("f-cru", "pendulum-regression"): 10_100,
    ("f-cru", "ushcn"): 14_000,
    ("f-cru", "physionet"): 21_500,
}


@pytest.mark.parametrize(("name", "dataset"), COUNTS)
def test_counts(name: str, dataset: str) -> None:
    assert create_paper(name, dataset).num_parameters == pytest.approx(COUNTS[name, dataset], rel=0.005)


def test_the_settings_are_those_of_the_datasets() -> None:
    assert set(SETTINGS) == set(cru.data.DATASETS)
    for name, setting in SETTINGS.items():
        assert setting.spec.time_scale == cru.data.DATASETS[name].time_scale


def test_unknown_datasets_and_every_model_on_every_dataset() -> None:
    with pytest.raises(ValueError, match="`dataset` must be one of"):
        paper_options("cru", "mnist")
    for name in MODELS:
        for dataset in ("ushcn", "physionet", *(["pendulum-interpolation"] if name != "corrected" else [])):
            model = create_paper(name, dataset)
            assert model.spec.target_size == {"ushcn": 5, "physionet": 37}.get(dataset, 576)
