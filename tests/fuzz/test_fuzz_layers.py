"""A short, fixed slice of the fuzzer of the layers."""

from tests.fuzz.layers import BATCH, LAYERS, check, make_problem


def test_random_layers_and_series() -> None:
    seeds = range(3 * len(LAYERS))
    found = {seed: check(make_problem(seed)) for seed in seeds}
    assert {seed: wrong for seed, (wrong, _) in found.items() if wrong} == {}
    assert sum(compared for _, compared in found.values()) > BATCH * len(seeds) / 2  # else it would check nothing
