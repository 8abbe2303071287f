"""Streams of random numbers: independent, the same on every machine, and two that keep their first bits."""

import itertools

import numpy as np
import pytest

from cru.data.random import generator

STREAMS = ("split", "frames", "noise", "hiding", "sparseness", "thinning", "order", "draws")


@pytest.mark.parametrize("seed", [0, 7])
def test_streams_of_one_seed_have_nothing_in_common(seed):
    seeds = [seed, (seed, 0), (seed, 0, 0), (seed, 1)]
    named = [generator(one, name) for name in STREAMS[3:] for one in seeds]
    first = [generator(seed, name) for name in STREAMS[:3]]
    drawn = [rng.random(1000) for rng in (*first, *named)]
    for a, b in itertools.combinations(drawn, 2):
        assert not np.isin(a, b).any() and abs(np.corrcoef(a, b)[0, 1]) < 0.2


def test_the_bits_of_the_first_data_version_stay():
    """numpy's own streams of the seed tuples that the first version had."""
    for name, number in (("split", 0), ("motion", 0), ("frames", 1), ("noise", 2)):
        expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence((5, number)))).random(4)
        assert np.array_equal(generator(5, name).random(4), expected)
