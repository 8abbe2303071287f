import pytest

from cru.evaluation import render
from cru.evaluation.tables import BETTER, INSIDE, WORSE, paper, paper_presets, paper_seconds, tables
from cru.training import models_of


def entry(preset, model, seed, mse, nll=0.0, *, changed=(), seconds=10.0, region="all"):
    test = {"scored": region, region: {"mse": mse, "nll": nll}}
    other = {"scored": region, region: {"mse": 9.0, "nll": 9.0}}
    scores = {"best": {"epoch": 9, "test": test}, "last": {"epoch": 100, "test": other}}
    keys = {"preset": preset, "model": model, "seed": seed, "changed": list(changed), "scores": scores}
    return keys | {"seconds_per_epoch": seconds, "hash": f"{preset}{model}{seed}"}


LEDGER = [
    entry("pendulum-regression", "cru", 0, 3.0e-3, -5.5),
    entry("pendulum-regression", "cru", 1, 4.0e-3, -5.4),
    entry("pendulum-regression", "cru", 1, 5.0e-3, -5.48),  # run again: the newest counts
    entry("pendulum-regression", "f-cru", 0, 3.2e-3, -6.0),
    entry("pendulum-regression", "gru", 0, 2.0e-2),
    entry("pendulum-regression", "rkn", 0, 1.0e-9, changed=["training.epochs"]),
    entry("ushcn-extrapolation", "cru", 0, 1.3e-2, region="hidden"),
    entry("ushcn-extrapolation", "climatology", 0, 0.93e-2, region="hidden", seconds=0.0),
]


def cells(number, preset):
    return next(table for table in tables(LEDGER) if table.number == number).cells[preset]


def test_mean_std_and_marks():
    found = cells(2, "pendulum-regression")
    assert found["cru"].paper == (4.626, 1.072)
    assert found["cru"].ours[:3] == pytest.approx((4.0, 2**0.5, 2)) and found["cru"].mark == INSIDE
    assert found["f-cru"].ours.std is None and found["f-cru"].mark == BETTER
    assert found["gru"].mark == WORSE
    assert found["mtand"].ours is None and found["mtand"].mark == ""


def test_nll_has_its_own_table():
    found = cells(3, "pendulum-regression")
    assert found["cru"].ours.mean == pytest.approx(-5.49) and found["cru"].mark == INSIDE
    assert found["f-cru"].mark == BETTER


def test_shortened_runs_never_enter_the_paper_s_table():
    assert cells(2, "pendulum-regression")["rkn"].ours is None


def test_naive_models_are_shown_and_those_that_lose_to_them_said():
    found = cells(1, "ushcn-extrapolation")
    assert found["climatology"].naive and found["climatology"].ours.mean == pytest.approx(0.93)
    assert found["cru"].beaten and not found["climatology"].beaten and found["cru"].mark == INSIDE
    page = render.markdown(tables(LEDGER), left_out=1)
    assert "On USHCN extrapolation these lose to the best naive model: cru." in page
    assert "| cru | 4.626 ± 1.072 |" not in page  # interpolation comes first in the row
    assert "4.000 ± 1.414 (2) ≈" in page and "3.200 (1) ▲" in page and "1.300 (1)* ≈" in page
    assert "1 shortened or changed runs" in page and "Not run yet: mtand (interpolation)" in page


def test_the_last_epoch_on_request():
    assert tables(LEDGER, epoch="last")[1].cells["pendulum-regression"]["cru"].ours.mean == pytest.approx(9000)


def test_every_number_of_the_paper_has_a_preset_and_a_model():
    assert [table["number"] for table in paper()["table"]] == [1, 2, 3]
    for table in paper()["table"]:
        for preset in table["columns"]:
            assert set(table[preset]) <= set(models_of(preset))
            for model in table[preset]:
                assert paper_seconds(preset, model) > 0
    assert len(paper_presets()) == 6 and paper_seconds("ushcn-interpolation", "mean") is None
