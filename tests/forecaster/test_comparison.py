"""Is a difference more than noise? The bootstrap against simulated differences."""

import numpy as np
import pytest

from cru.forecaster.comparison import Comparison, Losses, student


def comparison(
    difference: np.ndarray, cluster: np.ndarray, variable: np.ndarray | None = None, *, by_series: bool = True
) -> Comparison:
    """A model whose absolute errors exceed those of a naive model by ``difference``."""
    n = len(difference)
    variable = np.zeros(n, np.int64) if variable is None else variable
    base = np.full(n, 100.0)

    def losses(absolute: np.ndarray) -> Losses:
        return Losses(absolute, absolute**2, absolute, np.ones((n, 1), bool), np.ones((n, 1)))

    series = int(cluster.max()) + 1
    variables = int(variable.max()) + 1
    return Comparison(
        names=tuple(f"x{k}" for k in range(variables)),
        leads=("all",),
        series=tuple(map(str, range(series))),
        levels=(90.0,),
        variable_of=variable,
        lead_of=np.zeros(n, np.int64),
        series_of=cluster if by_series else np.zeros(n, np.int64),
        block_of=np.zeros(n, np.int64) if by_series else cluster,
        unit=np.ones(variables),
        varies=np.ones(variables, bool),
        losses={"model": losses(base + difference), "rule": losses(base)},
        naive=("rule",),
    )


def draw(rng: np.random.Generator, clusters: int, mean: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Differences that share a part within each cluster. Clusters have different sizes."""
    size = rng.integers(5, 30, clusters)
    cluster = np.repeat(np.arange(clusters), size)
    return mean + rng.normal(0, 1, clusters)[cluster] + rng.normal(0, 1, len(cluster)), cluster


@pytest.mark.parametrize(("clusters", "by_series"), [(6, False), (15, False), (60, True), (500, True)])
def test_the_interval_contains_the_true_difference_as_often_as_it_says(clusters, by_series):
    rng, inside, draws = np.random.default_rng(clusters), 0, 200
    for _ in range(draws):
        difference, cluster = draw(rng, clusters, mean=0.3)
        table = comparison(difference, cluster, by_series=by_series).table(())
        inside += table["low"][0] <= 0.3 <= table["high"][0]
    assert 0.91 <= inside / draws <= 0.985


def test_values_of_a_cluster_are_not_independent():
    """An interval that ignored the clusters would be several times as narrow."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(30), 100)
    difference = rng.normal(0, 1, 30)[cluster]
    table = comparison(difference, cluster).table(())
    width = table["high"][0] - table["low"][0]
    means = difference.reshape(30, 100)[:, 0]
    assert width == pytest.approx(2 * 2.045 * means.std(ddof=1) / np.sqrt(30), rel=0.1)


def test_better_states_what_is_more_than_noise():
    rng = np.random.default_rng(1)
    verdicts = {}
    for mean in (-2.0, 0.0, 2.0):
        table = comparison(*draw(rng, 60, mean)).table(())
        assert table["model"] == ["model", "rule"] and table["better"][1] == "reference"
        assert table["difference"][0] == pytest.approx(table["mae"][0] - table["mae"][1])
        verdicts[mean] = table["better"][0]
    assert verdicts == {-2.0: "yes", 0.0: "unclear", 2.0: "no"}


def test_few_clusters_give_no_verdict():
    table = comparison(np.full(30, 5.0), np.repeat([0, 1, 2], 10), by_series=False).table(())
    assert table["low"][0] == -np.inf and table["high"][0] == np.inf and table["better"][0] == "unclear"


def test_rounding_is_no_difference():
    table = comparison(np.full(60, -1e-6), np.arange(60)).table(())
    assert table["better"][0] == "unclear"


def test_equal_models_raise_no_alarm_and_worse_ones_do():
    rng, alarms = np.random.default_rng(2), 0
    for _ in range(50):
        parts = [draw(rng, 30) for _ in range(20)]
        variable = np.repeat(np.arange(20), [len(part[0]) for part in parts])
        difference, cluster = (np.concatenate(each) for each in zip(*parts, strict=True))
        alarms += bool(comparison(10 * difference, cluster, variable).find_losses("model", ["rule"]))
    assert alarms <= 3
    worse = comparison(10 * difference + 20 * (variable == 7), cluster, variable).find_losses("model", ["rule"])
    assert [(name, rule) for name, rule, _, _ in worse] == [("x7", "rule")]
    assert worse[0][2] == pytest.approx(120, rel=0.1) and worse[0][3] == pytest.approx(100)


def test_the_quantiles_of_student():
    """Against tables: 97.5 % and 99.5 %."""
    for freedom, two, three in ((3, 3.182, 5.841), (5, 2.571, 4.032), (10, 2.228, 3.169), (60, 2.000, 2.660)):
        assert student(1.95996, freedom) == pytest.approx(two, rel=3e-3)
        assert student(2.57583, freedom) == pytest.approx(three, rel=3e-2)
