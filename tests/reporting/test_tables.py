import pytest

from cru.reporting import render
from cru.reporting.paper_tables import (
    BETTER,
    INSIDE,
    WORSE,
    count_left_out,
    others,
    paper,
    paper_presets,
    paper_seconds,
    tables,
)
from cru.training import models_of


def entry(preset, model, seed, mse, nll=0.0, *, changed=(), seconds=10.0, region="all"):
    test = {"scored": region, region: {"mse": mse, "nll": nll}}
    other = {"scored": region, region: {"mse": 9.0, "nll": 9.0}}
    scores = {"best": {"epoch": 9, "test": test}, "last": {"epoch": 100, "test": other}}
    keys = {"preset": preset, "model": model, "seed": seed, "changed": list(changed), "scores": scores}
    return (
        keys
        | {"seconds_per_epoch": seconds, "hash": f"{preset}{model}{seed}"}
        | {
            "outdated": False,
            "older_settings": False,
        }
    )


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
    assert found["cru"].paper[:2] == (4.626, 1.072)
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


def test_naive_baselines_and_models_that_lose_to_them_are_shown():
    found = cells(1, "ushcn-extrapolation")
    assert found["climatology"].naive and found["climatology"].ours.mean == pytest.approx(0.93)
    assert found["cru"].beaten and not found["climatology"].beaten and found["cru"].mark == INSIDE
    page = render.markdown(tables(LEDGER), left_out=1)
    assert "On USHCN extrapolation these lose to a naive model on the same data: cru." in page
    assert "| cru | 4.626 ± 1.072 |" not in page  # interpolation comes first in the row
    assert "4.000 ± 1.414 (2) ≈" in page and "3.200 (1) ▲" in page and "1.300 (1)* ≈" in page
    assert "1 shortened or changed runs" in page and "Not run yet on interpolation: mtand, " in page


def test_a_model_loses_on_the_same_data_or_not_at_all():
    """A rule that was run on an earlier version of the data proves nothing."""
    rule = entry("ushcn-extrapolation", "climatology", 0, 0.5, region="hidden")
    for outdated, loses in ((False, True), (True, False)):
        model = entry("ushcn-extrapolation", "cru", 1, 1.0, region="hidden") | {"outdated": outdated}
        assert tables([rule, model])[0].cells["ushcn-extrapolation"]["cru"].beaten == loses


def test_runs_on_earlier_data_are_marked_until_there_are_others():
    old = [entry("ushcn-extrapolation", "cru", seed, 2e-2, region="hidden") | {"outdated": True} for seed in (0, 1)]
    new = entry("ushcn-extrapolation", "cru", 0, 1.2e-2, region="hidden")
    cell = tables(old)[0].cells["ushcn-extrapolation"]["cru"]
    assert cell.ours.outdated and cell.ours.seeds == 2 and "2.000 ± 0.000 (2)‡ ▼" in render.markdown(tables(old), 0)
    for entries in ([*old, new], [new, *old]):
        cell = tables(entries)[0].cells["ushcn-extrapolation"]["cru"]
        assert not cell.ours.outdated and cell.ours[:3] == (pytest.approx(1.2), None, 1)


def test_a_run_with_earlier_settings_is_shown_until_there_is_another():
    def older(seed, mse, clip, **more):
        made = entry("pendulum-regression", "ode-rnn", seed, mse, changed=["training.clip"])
        return made | {"older_settings": True, "settings": {"training": {"clip": clip}}} | more

    old = [older(0, 8e-3, 1.0), older(1, 9e-3, 1.0), older(0, 7e-3, 2.0)]
    cell = tables(old)[1].cells["pendulum-regression"]["ode-rnn"]
    assert cell.ours.older_settings and cell.ours[:3] == (pytest.approx(7.0), None, 1), "settings are not mixed"
    assert "7.000 (1)§ ≈" in render.markdown(tables(old), 0) and count_left_out(old) == 0
    outdated = entry("pendulum-regression", "ode-rnn", 0, 5e-3) | {"outdated": True}
    current = entry("pendulum-regression", "ode-rnn", 0, 6e-3)
    for entries, mean, mark in (
        ([older(0, 8e-3, 1.0, outdated=True)], 8.0, "(1)‡§ "),
        ([outdated, *old], 5.0, "(1)‡ "),
        ([current, outdated, *old], 6.0, "(1) "),
    ):
        found = tables(entries)
        assert found[1].cells["pendulum-regression"]["ode-rnn"].ours.mean == pytest.approx(mean)
        assert f"{mean:.3f} {mark}" in render.markdown(found, 0)
    changed = entry("pendulum-regression", "gru", 0, 5e-3, changed=["training.clip"])
    assert tables([changed])[1].cells["pendulum-regression"]["gru"].ours is None, "changed on the command line"


def test_runs_on_other_splits_are_labelled():
    def on(split):
        made = entry("ushcn-interpolation", "cru", 0, 1e-3, changed=["data.seed"] if split else [])
        return made | {"shortened": False, "settings": {"data": {"seed": split}}}

    found = others([on(0), on(1), on(2)])
    assert [(one.experiment, one.seeds) for one in found] == [("ushcn-interpolation, other splits", 2)]


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


def test_models_that_the_paper_does_not_have_stand_below_its_own():
    more = [entry("pendulum-regression", name, 0, 2.0e-3) for name in ("mean", "paired")]
    found = tables([*LEDGER, *more])[1]
    assert found.models.index("cru") < found.models.index("paired") < found.models.index("mean")
    assert found.cells["pendulum-regression"]["paired"].paper is None
    assert found.cells["pendulum-regression"]["paired"].mark == ""


def other(seed, mse, hidden, *, changed=(), shortened=False):
    made = entry("ushcn-imputation", "paired", seed, mse, -1.0, changed=changed)
    made["scores"]["best"]["test"]["hidden"] = {"mse": hidden, "nll": 0.0}
    return made | {"shortened": shortened, "settings": {"data": {"hidden": 0.3}}}


def test_experiments_of_ours_have_a_table_of_their_own():
    runs = [other(0, 1e-3, 3e-3), other(1, 2e-3, 5e-3), other(0, 9e-3, 9e-3, changed=["data.hidden"])]
    whole = [run | {"shortened": False, "settings": {}} for run in LEDGER]
    found = others([*whole, *runs, other(2, 8e-3, 8e-3, shortened=True)])
    assert [(one.experiment, one.seeds) for one in found] == [
        ("ushcn-imputation", 2),
        ("ushcn-imputation, data.hidden = 0.3", 1),
    ]
    assert found[0].mse == pytest.approx(1.5e-3) and found[0].hidden == pytest.approx(4e-3)
    page = render.markdown(tables(LEDGER), 0, found)
    assert "| ushcn-imputation | paired | 2 | 1.500 | 4.000 | -1.00 |  |" in page


def test_only_what_is_comparable_has_a_mark():
    quoted = entry("physionet-interpolation", "latent-ode", 0, 1e-5)
    quoted["scores"]["best"]["test"]["all"]["rubanova"] = 2e-3
    runs = [
        quoted,
        entry("ushcn-interpolation", "gru-d", 0, 1e-5),
        entry("ushcn-one-step", "gru-d", 0, 9.5e-3),
        entry("ushcn-interpolation-published", "cru", 0, 1.7e-4),
    ]
    (table, *_) = tables(runs, seconds={("ushcn-interpolation", "cru"): 4.0, ("ushcn-interpolation", "gru-d"): 6.0})
    assert table.cells["physionet-interpolation"]["latent-ode"].mark == "", "another average"
    assert table.cells["ushcn-interpolation"]["gru-d"].mark == INSIDE, "by the score one step ahead"
    assert table.cells["ushcn-interpolation"]["cru"].published_mark == INSIDE
    page = render.markdown([table], 0)
    assert "0.212 ± 0.027† | 0.001 (1); †0.200 (1) |" in page
    assert "| gru-d | 0.944 ± 0.011→ | 0.001 (1); →0.950 (1) ≈ |  | 2.39, 1.50 |" in page
    assert "| cru | 0.016 ± 0.006 | – | 0.017 (1) ≈ | 1.00, 1.00 |" in page
